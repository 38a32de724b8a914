"""Tables as one HTML page that needs nothing else, in the light, in the dark and on paper."""

from html import escape

from tulip_ood.benchmark.table_model import Cell, Table

__all__ = ["as_html"]

_STYLE = """
:root { --paper: #faf8f4; --card: #fff; --ink: #1f2430; --soft: #565d6d; --line: #e4dfd5;
  --row: #f6f2ea; --accent: #b8431f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e9e7e2;
  --soft: #a9afbb; --line: #2f3541; --row: #232833; --accent: #ff9265; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 40px 24px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1560px; margin: 0 auto; }
h1, h2 { font: 600 24px/1.3 Georgia, "Liberation Serif", serif; margin: 0 0 8px; }
h2 { margin-top: 56px; }
.about { max-width: 92ch; margin: 0 0 20px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; position: relative; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 8px; border-bottom: 1px solid var(--line); white-space: nowrap;
  text-align: right; }
th { font-weight: 600; }
thead th { color: var(--soft); font-size: 13px; vertical-align: bottom; white-space: normal; }
thead .group { color: var(--ink); text-align: center; }
.first { border-left: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
tr > :first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
tbody tr:hover > * { background: var(--row); }
tbody th { font: 500 13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.spread { color: var(--soft); font-size: 12px; }
b { color: var(--accent); }
sup { position: absolute; color: var(--accent); line-height: 1.2; }
.notes { margin: 20px 0 0; padding: 0; list-style: none; max-width: 92ch; color: var(--soft);
  font-size: 14px; }
.notes li { margin: 0 0 8px; }
@media (max-width: 640px) { body { padding: 20px 12px; } h1, h2 { font-size: 20px; }
  thead .group { text-align: left; } tbody th { white-space: normal; overflow-wrap: anywhere;
  min-width: 112px; max-width: 112px; } }
@media print { body { padding: 0; background: none; } .scroll { border: 0; overflow: visible; }
  table { font-size: 8px; } thead th, tbody th, .spread { font-size: 7px; }
  th, td { padding: 2px 3px; } }
"""


def as_html(table: Table, *more: Table) -> str:
    """One page with the table and its notes; further tables stand below it.

    Example:
        >>> from tulip_ood.benchmark.table_model import Column, Row
        >>> rows = (Row("a<b", (Cell("90.73 ± 0.43", bold=True),)),)
        >>> page = as_html(Table("CIFAR-10", (Column("", "AUROC ↑"),), rows, ()))
        >>> '<b>90.73</b> <span class="spread">± 0.43</span>' in page, "a&lt;b" in page
        (True, True)
    """
    title = table.caption.partition(". ")[0]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            *_section(table, "h1"),
            *(line for each in more for line in _section(each, "h2")),
            "</main></body></html>",
            "",
        ]
    )


def _section(table: Table, heading: str) -> list[str]:
    starts = _starts(table)
    rows = [
        f'<tr><th scope="row">{escape(row.name)}</th>'
        + "".join(f"<td{_class(i in starts)}>{_cell(c)}</td>" for i, c in enumerate(row.cells))
        + "</tr>"
        for row in table.rows
    ]
    title, _, about = table.caption.partition(". ")
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return [
        f"<{heading}>{escape(title)}</{heading}>",
        f'<p class="about">{escape(about)}</p>' if about else "",
        '<div class="scroll" tabindex="0" role="region" aria-label="Results"><table>',
        *_head(table, starts),
        "<tbody>",
        *rows,
        "</tbody></table></div>",
        f'<ul class="notes">{notes}</ul>' if notes else "",
    ]


def _starts(table: Table) -> set[int]:
    """The columns that a group begins with."""
    found, place = set(), 0
    for _, count in table.spans():
        found.add(place)
        place += count
    return found


def _class(first: bool, *others: str) -> str:
    names = [*others, *(["first"] if first else [])]
    return f' class="{" ".join(names)}"' if names else ""


def _head(table: Table, starts: set[int]) -> list[str]:
    titles = "".join(
        f'<th scope="col"{_class(i in starts)}>{_title(column.title)}</th>'
        for i, column in enumerate(table.columns)
    )
    lines = [f'<tr><th scope="col">method</th>{titles}</tr>']
    if any(column.group for column in table.columns):
        groups = "".join(
            f'<th scope="colgroup" colspan="{count}"{_class(True, "group")}>{escape(group)}</th>'
            for group, count in table.spans()
        )
        lines.insert(0, f"<tr><td></td>{groups}</tr>")
    return ["<thead>", *lines, "</thead>"]


def _title(text: str) -> str:
    """Where it wraps, no arrow and no factor stands alone."""
    found = escape(text)
    for sign in (" ↑", " ↓", " × "):
        found = found.replace(sign, sign.replace(" ", "&nbsp;"))
    return found


def _cell(cell: Cell) -> str:
    """The spread or the interval stands back behind the number itself."""
    value, space, rest = escape(cell.text).partition(" ")
    shown = f"<b>{value}</b>" if cell.bold else value
    mark = f"<sup>{escape(cell.mark)}</sup>" if cell.mark else ""
    return f'{shown}{mark}{space}<span class="spread">{rest}</span>' if rest else f"{shown}{mark}"
