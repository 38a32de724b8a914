"""A part of a benchmark: the rows that play one role for one ID set."""

import hashlib
import os
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tulip_ood.data.imagelist import ImageList
from tulip_ood.data.selection import Selected
from tulip_ood.data.source import FileStamp, Source
from tulip_ood.errors import DataError, InputError
from tulip_ood.numerics.random import permutation

__all__ = ["Part"]

_WHOLE_FILES = (".parquet", ".npz")


@dataclass(frozen=True)
class Part:
    """The rows that play one role for one ID set.

    Attributes:
        name: Of the set, as the protocol calls it.
        role: "train", "val", "test", "ood_val", or the name of one of the protocol's sets.
        source: The rows; those of OOD sets have no labels.
        expected: As many as the protocol has; None where it does not say.
        stand_in: What it is instead of the protocol's own set; None if it is that.
        notes: What else there is to know, for instance rows that are missing.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> part = Part("svhn", "svhn", ImageFiles("x", ["a.png", "b.png"], [None] * 2), 26_032)
        >>> len(part), len(part.limited(1))
        (2, 1)
    """

    name: str
    role: str
    source: Source
    expected: int | None = None
    stand_in: str | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def limited(self, n: int, seed: int = 0) -> "Part":
        """A seeded subset of n rows in their old order; all if there are no more than n.

        Example:
            >>> from tulip_ood.data.source import ImageFiles
            >>> six = Part("x", "test", ImageFiles("x", list("abcdef"), [None] * 6))
            >>> [row.path for row, _ in six.limited(3).source.read()]
            ['c', 'd', 'e']
        """
        if n < 1:
            raise InputError(f"a limit must be at least 1, got {n}")
        if n >= len(self):
            return self
        order = permutation(len(self), seed=seed, name=f"limit/{self.name}")
        return replace(self, source=Selected(self.source, sorted(order[:n].tolist())))

    def digest(self) -> str:
        """SHA-256 of all that decides the rows: files, choice and labels.

        Parquet and npz files count with their content, images with path, size and time.

        Example:
            >>> from tulip_ood.data.source import ImageFiles
            >>> one = Part("x", "test", ImageFiles("x", ["a"], [0]))
            >>> other = Part("x", "test", ImageFiles("x", ["a"], [1]))
            >>> one.digest() == other.digest()
            False
        """
        digest = hashlib.sha256()
        for line in (*_contents(self.source), *_choice(self.source)):
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
        for label in self.source.labels():
            digest.update(f"{np.asarray(label).tolist()!r}\n".encode())
        return digest.hexdigest()


def _contents(source: Source) -> list[str]:
    stamps = list(source.files())
    if isinstance(source, ImageList):
        stamps = stamps[1:]  # the list: what it says is in the paths and labels
    found = []
    for stamp in stamps:
        if stamp.path.lower().endswith(_WHOLE_FILES):
            found.append(_sha256(stamp))
        else:
            found.append(f"{os.path.abspath(stamp.path)} {stamp.size} {stamp.mtime_ns}")
    return found


def _choice(source: Source) -> list[str]:
    """The rows that are taken, by their numbers in the file itself."""
    numbers = np.arange(len(source))
    while isinstance(source, Selected):
        numbers = np.asarray(source.rows)[numbers]
        source = source.base
    return [hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()]


@lru_cache(maxsize=256)
def _sha256(stamp: FileStamp) -> str:
    """Of a file's content; asked for again, only its size and time are looked at."""
    try:
        with open(stamp.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{stamp.path} cannot be read: {error.strerror}") from error
