"""A source: rows of inputs in a fixed order, each with a path and perhaps a label.

Reading a row gives what lies there (a path, bytes, pixels), not yet decoded: that is done
elsewhere, by several threads.
"""

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tulip_ood.data.decoding import Raw
from tulip_ood.data.vanished import common_folders
from tulip_ood.errors import DataError

__all__ = ["Chain", "FileStamp", "ImageFiles", "Label", "Row", "Shard", "Source", "Window"]

# A class number; a number (regression); an array (several outputs, or one for every position).
Label = int | float | NDArray[np.generic] | None
NO_LABEL = -1
_NAMED = 20  # sources that a chain names


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
        """The file as it is now, on this machine or elsewhere."""
        from tulip_ood.data.remote import is_remote, stamp_of

        if is_remote(path):
            return stamp_of(path) or FileStamp(path, -1, 0)
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

    def folders(self) -> Iterator[str]:
        """Folders on this machine without which no row, or none of a part of them, can be read."""
        return iter(())

    def shard(self, first: int, stop: int) -> "Shard":
        """Rows first … stop − 1 under their own numbers, as little as can be sent elsewhere.

        Here the rows themselves, which may be mere paths; a source that can be opened anywhere
        gives itself and a range instead.
        """
        return Shard(self.name, [list(self.read(first, stop))], ready=self.ready)


@dataclass(frozen=True)
class Window:
    """A range of a source that is read where it is asked for.

    Attributes:
        source: Small when it is sent to another process.
        first: The first row.
        stop: The row before which to stop; None for the last.
        offset: What is added to the rows' numbers.

    Example:
        >>> source = ImageFiles("x", ["a.png", "b.png", "c.png"], [7, 8, 9])
        >>> [row.number for row, _ in Window(source, 1, 3, offset=10)]
        [11, 12]
    """

    source: Source
    first: int = 0
    stop: int | None = None
    offset: int = 0

    def __iter__(self) -> Iterator[tuple[Row, Raw]]:
        for row, raw in self.source.read(self.first, self.stop):
            yield row._replace(number=row.number + self.offset), raw


class Shard(Source):
    """Some rows of a source, which keep their numbers; made by `Source.shard`.

    Args:
        name: The source's.
        pieces: Rows with what was read for each, or windows, in order.
        ready: As the source is.

    Example:
        >>> two = ImageFiles("x", ["a.png", "b.png", "c.png"], [7, 8, 9]).shard(1, 3)
        >>> [row.number for row, _ in two.read()], list(two.labels())
        ([1, 2], [8, 9])
    """

    def __init__(
        self, name: str, pieces: Sequence[Iterable[tuple[Row, Raw]]], *, ready: bool = False
    ) -> None:
        self.name = name
        self.ready = ready
        self._pieces = pieces

    def __len__(self) -> int:
        return sum(1 for _ in self.read())

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """Those of the rows whose numbers are first … stop − 1."""
        for row, raw in chain.from_iterable(self._pieces):
            if first <= row.number and (stop is None or row.number < stop):
                yield row, raw

    def labels(self) -> Iterator[Label]:
        """Every row's label."""
        return (row.label for row, _ in self.read())

    def files(self) -> Iterator[FileStamp]:
        """None: the source knows them."""
        return iter(())


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

    def folders(self) -> Iterator[str]:
        """On every disk the one that holds them all."""
        return iter(common_folders(self._paths))


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
        self._starts = [0, *accumulate(map(len, sources))]
        self.name = ", ".join(source.name for source in sources[:_NAMED])
        if len(sources) > _NAMED:
            self.name += f", … ({len(sources):,} in all)"
        self.ready = sources[0].ready
        names = {source.classes for source in sources}
        self.classes = names.pop() if len(names) == 1 else None

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """Rows numbered through all sources."""
        for source, low, high, start in self._within(first, len(self) if stop is None else stop):
            yield from Window(source, low, high, start)

    def _within(self, first: int, stop: int) -> Iterator[tuple[Source, int, int, int]]:
        """(source, its first row, its last row + 1, its place) of all that have such rows."""
        index = bisect_right(self._starts, first) - 1
        while index < len(self._sources) and self._starts[index] < stop:
            start, end = self._starts[index], self._starts[index + 1]
            if first < end:
                yield self._sources[index], max(first - start, 0), min(stop, end) - start, start
            index += 1

    def shard(self, first: int, stop: int) -> Shard:
        """Of every source what it would send."""
        found = self._within(first, stop)
        pieces = [Window(s.shard(low, high), offset=start) for s, low, high, start in found]
        return Shard(self.name, pieces, ready=self.ready)

    def labels(self) -> Iterator[Label]:
        """Every row's label."""
        for source in self._sources:
            yield from source.labels()

    def files(self) -> Iterator[FileStamp]:
        """Every file."""
        for source in self._sources:
            yield from source.files()

    def folders(self) -> Iterator[str]:
        """Those of every source."""
        for source in self._sources:
            yield from source.folders()
