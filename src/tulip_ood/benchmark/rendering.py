"""A table as text for a terminal, as Markdown, LaTeX or HTML."""

import textwrap
from collections.abc import Callable, Sequence

from tulip_ood.benchmark.rendering_html import as_html
from tulip_ood.benchmark.rendering_latex import as_latex
from tulip_ood.benchmark.table_model import Cell, Table
from tulip_ood.errors import InputError

__all__ = ["FORMATS", "as_markdown", "as_text", "render"]

WIDTH = 140
_BETWEEN = 2


def render(table: Table, format: str = "text") -> str:  # noqa: A002 – what users call it
    """A table in one of the `FORMATS`.

    Example:
        >>> render(Table("Nothing", (), (), ()), "word")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: a table can be written as text, markdown, latex or html, \
not 'word'
    """
    if format not in FORMATS:
        *most, last = FORMATS
        raise InputError(f"a table can be written as {', '.join(most)} or {last}, not {format!r}")
    return FORMATS[format](table)


def as_text(table: Table, *, width: int = WIDTH) -> str:
    """Aligned columns; a star is bold. What does not fit beside each other stands below.

    Example:
        >>> from tulip_ood.benchmark.table_model import Column, Row
        >>> print(as_text(Table("CIFAR-10", (Column("far", "AUROC ↑"),), \
(Row("msp", (Cell("90.73", bold=True),)),), ("In %.",))))
        CIFAR-10
        <BLANKLINE>
                ─ far ─
        method  AUROC ↑
        msp      90.73*
        <BLANKLINE>
        In %.
        A star stands for bold.
    """
    out = textwrap.wrap(table.caption, width)
    for first, last in _pieces(table, width):
        out += ["", *_aligned(table, first, last)]
    notes = [*table.notes]
    if any(cell.bold for row in table.rows for cell in row.cells):
        notes.append("A star stands for bold.")
    out += [""] if notes else []
    for note in notes:
        out += textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(out)


def _shown(cell: Cell) -> str:
    return f"{cell.text}{cell.mark}{'*' if cell.bold else ''}"


def _widths(table: Table) -> list[int]:
    """Of every column with the space before it; a group's name has room above its columns."""
    found = []
    for place, column in enumerate(table.columns):
        texts = [column.title, *(_padded(table, row.cells[place], place) for row in table.rows)]
        found.append(_BETWEEN + max(map(len, texts)))
    place = 0
    for group, count in table.spans():
        found[place] += max(0, len(group) + _BETWEEN - sum(found[place : place + count]))
        place += count
    return found


def _padded(table: Table, cell: Cell, place: int) -> str:
    """In a column with marks or stars a space instead of them, so that digits are aligned."""
    marked = any(r.cells[place].mark or r.cells[place].bold for r in table.rows)
    text = _shown(cell)
    return f"{text} " if marked and not (cell.mark or cell.bold) else text


def _name_width(table: Table) -> int:
    return max(len(name) for name in ("method", *(row.name for row in table.rows)))


def _pieces(table: Table, width: int) -> list[tuple[int, int]]:
    """Ranges of columns that fit beside each other, cut between groups where that is possible."""
    widths, room = _widths(table), width - _name_width(table)
    pieces, first, place = [], 0, 0
    for _, count in table.spans():
        if place > first and sum(widths[first : place + count]) > room:
            pieces.append((first, place))
            first = place
        place += count
    return [*pieces, (first, place)]


def _aligned(table: Table, first: int, last: int) -> list[str]:
    widths, name = _widths(table), _name_width(table)
    over, place = [" " * name], 0
    for group, count in table.spans():
        if first <= place < last:
            over.append(_centred(group, sum(widths[place : place + count])))
        place += count
    titles = ["method".ljust(name)]
    titles += [table.columns[i].title.rjust(widths[i]) for i in range(first, last)]
    lines = [over, titles]
    for row in table.rows:
        cells = [_padded(table, row.cells[i], i).rjust(widths[i]) for i in range(first, last)]
        lines.append([row.name.ljust(name), *cells])
    found = ["".join(line).rstrip() for line in lines]
    return found if found[0] else found[1:]


def _centred(group: str, width: int) -> str:
    """Over its columns, with a line that shows how far they reach."""
    room = width - _BETWEEN
    shown = f" {group} ".center(room, "─") if group and room > len(group) + 3 else group.rjust(room)
    return " " * _BETWEEN + shown


def as_markdown(table: Table) -> str:
    """A table as GitHub shows it; what stands above several columns stands in each title.

    Example:
        >>> from tulip_ood.benchmark.table_model import Column, Row
        >>> print(as_markdown(Table("CIFAR-10", (Column("far", "AUROC ↑"),), \
(Row("msp", (Cell("90.73", bold=True),)),), ("In %.",))))
        **CIFAR-10**
        <BLANKLINE>
        | method | far AUROC ↑ |
        |---|--:|
        | `msp` | **90.73** |
        <BLANKLINE>
        - In %.
    """
    titles = [_plain(f"{column.group} {column.title}".strip()) for column in table.columns]
    lines = [f"**{_plain(table.caption)}**", "", _line(["method", *titles])]
    lines.append(f"|---|{'--:|' * len(titles)}")
    for row in table.rows:
        cells = [_marked(cell) for cell in row.cells]
        lines.append(_line([f"`{row.name.replace('|', '¦')}`", *cells]))
    if table.notes:
        lines += ["", *(f"- {_plain(note)}" for note in table.notes)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(cell: Cell) -> str:
    text = _plain(cell.text)
    return (f"**{text}**" if cell.bold else text) + _plain(cell.mark)


def _plain(text: str) -> str:
    """Characters that Markdown would take as its own."""
    for each in "\\`*_[]<>|":
        text = text.replace(each, f"\\{each}")
    return " ".join(text.split())


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "html": as_html,
}
