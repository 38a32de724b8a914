"""A source: rows of inputs in a fixed order, each with a path and perhaps a label.

Reading a row gives what lies there (a path, bytes, pixels), not yet decoded: that is done
elsewhere, by several threads.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tulip_ood.data.decoding import Raw
from tulip_ood.errors import DataError

__all__ = ["Chain", "FileStamp", "ImageFiles", "Label", "Row", "Source"]

# A class number; a number (regression); an array (several outputs, or one for every position).
Label = int | float | NDArray[np.generic] | None
NO_LABEL = -1


class Row(NamedTuple):
    """Which input this is.

    Attributes:
        number: Its place in the whole run, from 0.
        path: Where it came from.
        label: The truth, or None.

    Example:
        >>> Row(0, "cats/tom.jpg", 3).label
        3
    """

    number: int
    path: str
    label: Label


class FileStamp(NamedTuple):
    """What tells one state of a file from another.

    Attributes:
        path: As it was named.
        size: In bytes; −1 if there is no such file.
        mtime_ns: When it was last written.

    Example:
        >>> FileStamp.of("/no/such/file").size
        -1
    """

    path: str
    size: int
    mtime_ns: int

    @staticmethod
    def of(path: str) -> "FileStamp":
        """The file as it is now."""
        try:
            found = os.stat(path)
        except OSError:
            return FileStamp(path, -1, 0)
        return FileStamp(path, found.st_size, found.st_mtime_ns)


class Source(ABC):
    """The protocol that every source follows.

    Attributes:
        name: What the user called it.
        ready: Whether rows are network inputs already, so that nothing is decoded or normalised.
        classes: The names of the classes, where the source knows them.

    Example:
        >>> source = ImageFiles("two", ["a.png", "b.png"], [0, None])
        >>> len(source), list(source.labels())
        (2, [0, None])
    """

    name: str
    ready: bool = False
    classes: tuple[str, ...] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """Rows first … stop − 1, in order."""

    @abstractmethod
    def labels(self) -> Iterator[Label]:
        """Every row's label, without reading the inputs."""

    @abstractmethod
    def files(self) -> Iterator[FileStamp]:
        """The files that the rows come from, in order."""


class ImageFiles(Source):
    """Image files one by one: the ground of folders and lists.

    Args:
        name: What the user called it.
        paths: One file a row.
        labels: One label a row.
        classes: The names of the classes.

    Example:
        >>> row, raw = next(ImageFiles("x", ["a.png"], [7]).read())
        >>> row, raw
        (Row(number=0, path='a.png', label=7), 'a.png')
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        labels: Sequence[int | None],
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.classes = classes
        self._paths = paths
        self._labels = labels

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """The row and its path."""
        for i in range(first, len(self) if stop is None else min(stop, len(self))):
            yield Row(i, self._paths[i], self._labels[i]), self._paths[i]

    def labels(self) -> Iterator[Label]:
        """Every row's label."""
        return iter(self._labels)

    def files(self) -> Iterator[FileStamp]:
        """Every file."""
        return map(FileStamp.of, self._paths)


class Chain(Source):
    """Several sources, one after another.

    Args:
        sources: At least one; all of the same kind (images, or ready inputs).

    Example:
        >>> both = Chain([ImageFiles("x", ["a.png"], [7]), ImageFiles("y", ["b.png"], [8])])
        >>> [row for row, _ in both.read(first=1)]
        [Row(number=1, path='b.png', label=8)]
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        kinds = {source.ready: source.name for source in sources}
        if len(kinds) > 1:
            raise DataError(
                f"images ({kinds[False]}) and arrays that are already normalised ({kinds[True]}) "
                f"cannot go into one run: give them one by one"
            )
        self._sources = list(sources)
        self.name = ", ".join(source.name for source in sources)
        self.ready = sources[0].ready
        names = {source.classes for source in sources}
        self.classes = names.pop() if len(names) == 1 else None

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """Rows numbered through all sources."""
        start = 0
        end = len(self) if stop is None else stop
        for source in self._sources:
            low, high = max(first - start, 0), min(end - start, len(source))
            if low < high:
                for row, raw in source.read(low, high):
                    yield row._replace(number=row.number + start), raw
            start += len(source)

    def labels(self) -> Iterator[Label]:
        """Every row's label."""
        for source in self._sources:
            yield from source.labels()

    def files(self) -> Iterator[FileStamp]:
        """Every file."""
        for source in self._sources:
            yield from source.files()
