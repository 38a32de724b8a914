"""A table as a picture: columns in groups, the best in bold, the second best underlined."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.columns import below

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Entry", "PictureTable", "draw_table", "emphasise"]

_LINE = 0.34  # inches
_COLUMN = 1.34
_FIRST = 3.3


@dataclass(frozen=True)
class Entry:
    """One cell.

    Attributes:
        text: What stands there.
        value: What it is ranked by; None where it is not.
        bold: The best of its column.
        underlined: The second best.
        quiet: Not ours: drawn in grey.

    Example:
        >>> Entry("90.1", 90.1).bold
        False
    """

    text: str
    value: float | None = None
    bold: bool = False
    underlined: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class PictureTable:
    """What a table shows.

    Attributes:
        groups: Titles over columns, each with how many it spans.
        head: The columns' own titles, without the first column.
        rows: A label and as many entries as there are columns.
        rules: Before which rows a line is drawn.
        small_print: Under the table.

    Example:
        >>> PictureTable([("CIFAR-10", 1)], ["AUROC"], [("MSP", [Entry("88.0")])], (), "").head
        ['AUROC']
    """

    groups: Sequence[tuple[str, int]]
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    rules: Sequence[int]
    small_print: str


def emphasise(column: Sequence[Entry], *, higher: bool = True) -> list[Entry]:
    """The same entries with the best in bold and the second best underlined.

    Example:
        >>> done = emphasise([Entry("1", 1.0), Entry("3", 3.0), Entry("2", 2.0), Entry("–")])
        >>> [(e.bold, e.underlined) for e in done]
        [(False, False), (True, False), (False, True), (False, False)]
    """
    known = sorted({e.value for e in column if e.value is not None}, reverse=higher)
    first, second = (known[i] if len(known) > i else None for i in (0, 1))
    return [
        Entry(
            e.text,
            e.value,
            bold=e.value is not None and e.value == first,
            underlined=e.value is not None and e.value == second,
            quiet=e.quiet,
        )
        for e in column
    ]


def draw_table(
    table: PictureTable,
    name: str,
    out: str | Path,
    rows: list[dict[str, Any]],
    lines: Sequence[str] = (),
) -> Drawn:
    """Draw a table into a folder.

    Args:
        table: What it shows.
        name: Of the files.
        out: The folder.
        rows: The numbers, for the parquet file.
        lines: What to tell the user.

    Example:
        >>> import tempfile
        >>> table = PictureTable([("CIFAR-10", 1)], ["AUROC"], [("MSP", [Entry("88.0")])], (), "")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawn = draw_table(table, "t", folder, [{"method": "msp", "auroc": 88.0}])
        >>> drawn.table.name
        't.parquet'
    """
    need_matplotlib()
    if not table.rows:
        raise InputError(f"{name}: there is nothing to show in these results")
    width = _FIRST + _COLUMN * len(table.head)
    height = _LINE * (len(table.rows) + 2.6)
    with canvas(width + 0.2, height + 0.8) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(height, -0.1))
        _draw_head(axes, table, width)
        for number, (label, entries) in enumerate(table.rows):
            y = _LINE * (2.6 + number)
            if number in table.rules:
                _rule(axes, y - 0.62 * _LINE, width, 0.7)
            axes.text(0.05, y, label, va="center", fontsize=12)
            for place, entry in enumerate(entries):
                _draw_entry(axes, entry, _FIRST + _COLUMN * (place + 0.5), y)
        _rule(axes, _LINE * (len(table.rows) + 2.05), width, 1.4)
        if table.small_print:
            below(figure, table.small_print)
        return save(figure, name, out, rows, {}, lines)


def _rule(axes: "Axes", y: float, width: float, weight: float) -> None:
    axes.plot([0, width], [y, y], color=COLOURS["ink"], lw=weight, clip_on=False)


def _draw_head(axes: "Axes", table: PictureTable, width: float) -> None:
    _rule(axes, -0.05, width, 1.4)
    at = 0
    for title, span in table.groups:
        left, right = _FIRST + _COLUMN * at, _FIRST + _COLUMN * (at + span)
        axes.text(
            (left + right) / 2, 0.5 * _LINE, title, ha="center", va="center", fontweight="bold",
            fontsize=13,
        )  # fmt: skip
        if span > 1:
            y = 0.95 * _LINE
            axes.plot([left + 0.1, right - 0.1], [y, y], color=COLOURS["grey"], lw=0.7)
        at += span
    for place, text in enumerate(table.head):
        axes.text(
            _FIRST + _COLUMN * (place + 0.5), 1.42 * _LINE, text, ha="center", va="center",
            fontsize=11, color=COLOURS["grey"],
        )  # fmt: skip
    _rule(axes, 1.95 * _LINE, width, 1.0)


def _draw_entry(axes: "Axes", entry: Entry, x: float, y: float) -> None:
    axes.text(
        x, y, entry.text, ha="center", va="center", fontsize=12,
        fontweight="bold" if entry.bold else "normal",
        color=COLOURS["grey"] if entry.quiet else COLOURS["ink"],
    )  # fmt: skip
    if entry.underlined:
        half = 0.043 * len(entry.text)
        axes.plot([x - half, x + half], [y + 0.31 * _LINE] * 2, color=COLOURS["ink"], lw=1.0)
