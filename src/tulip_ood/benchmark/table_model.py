"""A table before it has a form: what stands in it, whatever it is written as."""

import math
from dataclasses import dataclass

from tulip_ood.benchmark.averages import Average
from tulip_ood.benchmark.bootstrap import Interval
from tulip_ood.errors import InputError

__all__ = ["Cell", "Column", "Row", "Table", "difference", "number"]

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """One number as it is shown.

    Attributes:
        text: The number.
        bold: Whether it is clearly the best of its column.
        mark: Refers to a note: "‡", "?".

    Example:
        >>> Cell("47.03", mark="?").text
        '47.03'
    """

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        group: What stands above it and its neighbours; "" for nothing.
        title: Its name.

    Example:
        >>> Column("near OOD †", "AUROC ↑").title
        'AUROC ↑'
    """

    group: str
    title: str


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        name: As it was asked for.
        cells: One for each column.

    Example:
        >>> Row("msp", (Cell("88.03"),)).name
        'msp'
    """

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table with its caption and notes.

    Attributes:
        caption: What it shows, on which images, fitted on what.
        columns: All but the first, which holds the methods.
        rows: One for each method.
        notes: What a reader must know, most important first.

    Example:
        >>> Table("CIFAR-10", (Column("", "AURC ↓"),), (Row("msp", ()),), ())
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: the row of msp has 0 cells, but there are 1 columns
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise InputError(
                    f"the row of {row.name} has {len(row.cells)} cells, but there are "
                    f"{len(self.columns)} columns"
                )

    def spans(self) -> list[tuple[str, int]]:
        """The groups over the columns, with the number of columns each of them covers."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found


def number(average: Average, *, unit: float = 100.0) -> str:
    """A mean with its spread over networks, where there is one.

    Example:
        >>> number(Average(0.8803, 0.0025)), number(Average(0.0051, float("nan")), unit=1000)
        ('88.03 ± 0.25', '5.10')
    """
    if not math.isfinite(average.mean):
        return NOTHING
    mean = f"{unit * average.mean:.2f}"
    return f"{mean} ± {unit * average.spread:.2f}" if math.isfinite(average.spread) else mean


def difference(interval: Interval) -> str:
    """A difference with its interval, in points.

    Example:
        >>> difference(Interval(0.0123, -0.001, 0.02))
        '+1.23 (−0.10 to +2.00)'
        >>> difference(Interval(0.0123, math.nan, math.nan))  # one without an interval
        '+1.23'
    """
    if not math.isfinite(interval.value):
        return NOTHING
    value, low, high = (
        f"{100 * each:+.2f}".replace("-", "−")
        for each in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})" if math.isfinite(interval.low) else value
