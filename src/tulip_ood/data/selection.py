"""Some rows of a source."""

from collections.abc import Iterator, Sequence

from tulip_ood.data.arrays import Arrays
from tulip_ood.data.decoding import Raw
from tulip_ood.data.source import FileStamp, ImageFiles, Label, Row, Source
from tulip_ood.errors import InputError
from tulip_ood.wording import counted

__all__ = ["Selected"]

_SEEKING = (ImageFiles, Arrays)  # any row of these is at hand; others are read through


class Selected(Source):
    """Some rows of a source, in its order, numbered from 0.

    Args:
        source: Where they come from.
        rows: Their numbers there, strictly increasing.
        labels: One a row instead of the source's own (None: it has none); by default those stay.

    Example:
        >>> four = ImageFiles("x", ["a.png", "b.png", "c.png", "d.png"], [7, 8, 9, 9])
        >>> chosen = Selected(four, [1, 3])
        >>> [row for row, _ in chosen.read()]
        [Row(number=0, path='b.png', label=8), Row(number=1, path='d.png', label=9)]
        >>> list(Selected(four, [1, 3], labels=[None, None]).labels())
        [None, None]
    """

    def __init__(
        self, source: Source, rows: Sequence[int], labels: Sequence[Label] | None = None
    ) -> None:
        self.name, self.ready, self.classes = source.name, source.ready, source.classes
        self._source, self._rows, self._labels = source, list(rows), labels
        for before, after in zip(self._rows, self._rows[1:], strict=False):
            if after <= before:
                raise InputError(f"rows must increase, but {after} comes after {before}")
        if self._rows and not 0 <= self._rows[0] <= self._rows[-1] < len(source):
            raise InputError(
                f"rows {self._rows[0]} to {self._rows[-1]} were chosen of {source.name}, which has "
                f"{len(source)}"
            )
        if labels is not None and len(labels) != len(self._rows):
            given = counted(len(labels), "label")
            raise InputError(f"{counted(len(self._rows), 'row')} chosen, but {given} given")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def base(self) -> Source:
        """The source that they come from."""
        return self._source

    @property
    def rows(self) -> Sequence[int]:
        """The numbers of the rows in the source that they come from."""
        return self._rows

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """The chosen rows; what lies between them is passed over, not decoded."""
        wanted = self._rows[first : len(self) if stop is None else stop]
        found = self._by_range(wanted)
        for number, (row, raw) in enumerate(found, start=first):
            label = row.label if self._labels is None else self._labels[number]
            yield Row(number, row.path, label), raw

    def _by_range(self, wanted: Sequence[int]) -> Iterator[tuple[Row, Raw]]:
        if not wanted:
            return
        if isinstance(self._source, _SEEKING):
            for number in wanted:
                yield from self._source.read(number, number + 1)
            return
        # Parquet is opened once and read through: a range of its own for every gap would read
        # the same row group again and again.
        left = iter(wanted)
        target = next(left)
        for row, raw in self._source.read(wanted[0], wanted[-1] + 1):
            if row.number == target:
                yield row, raw
                target = next(left, -1)

    def labels(self) -> Iterator[Label]:
        """Every chosen row's label."""
        if self._labels is not None:
            yield from self._labels
            return
        left = iter(self._rows)
        target = next(left, -1)
        for number, label in enumerate(self._source.labels()):
            if number == target:
                yield label
                target = next(left, -1)

    def files(self) -> Iterator[FileStamp]:
        """The files that the chosen rows come from."""
        if not isinstance(self._source, ImageFiles):
            yield from self._source.files()
            return
        for _, raw in self.read():
            if isinstance(raw, str):
                yield FileStamp.of(raw)
