"""A comparison as a table for the terminal: coloured, or plain text."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tulip_ood.benchmark.results import Comparison, MethodResult

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Column", "columns", "plain_table", "rich_table"]


@dataclass(frozen=True)
class Column:
    """One number of every method.

    Attributes:
        group: What stands above it: the OOD set, or "".
        title: Its name.
        cells: The number of each method as it is shown.
        best: Which methods have the best one, as shown.
        note: What it means.

    Example:
        >>> Column("noise", "AUROC ↑", {"msp": "90.1"}, frozenset({"msp"}), "").cells["msp"]
        '90.1'
    """

    group: str
    title: str
    cells: dict[str, str]
    best: frozenset[str]
    note: str


def columns(comparison: Comparison) -> list[Column]:
    """AUROC and FPR on each set, and AURC, as they are shown everywhere.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> [c.title for c in columns(evaluate(detectors, (x, y), {"wide": 9 * x}))]
        ['AUROC ↑', 'FPR@95 ↓', 'AURC ↓']
    """
    found = []
    for name in comparison.sets:

        def auroc(result: MethodResult, each: str = name) -> float:
            return 100 * result.sets[each].auroc

        def flagged(result: MethodResult, each: str = name) -> float:
            return 100 * result.sets[each].id_flagged_at_95_ood

        found.append(_column(comparison, name, "AUROC ↑", auroc, 1, highest=True))
        found.append(_column(comparison, name, "FPR@95 ↓", flagged, 1, highest=False))
    found.append(_column(comparison, "", "AURC ↓", lambda r: 1000 * r.aurc, 2, highest=False))
    return found


_NOTES = {
    "AUROC ↑": "how often an OOD input scores higher than an ID one, in %; 50 is guessing",
    "FPR@95 ↓": "ID inputs refused, in %, at the threshold that catches 95 % of the OOD ones",
    "AURC ↓": "× 10⁻³: error rate of the accepted ID answers, averaged over how many are accepted",
}


def _column(
    comparison: Comparison,
    group: str,
    title: str,
    value: Callable[[MethodResult], float],
    digits: int,
    *,
    highest: bool,
) -> Column:
    values = {name: value(result) for name, result in comparison.methods.items()}
    rounded = {name: round(v, digits) for name, v in values.items() if math.isfinite(v)}
    top = (max if highest else min)(rounded.values(), default=math.nan)
    best = frozenset(name for name, v in rounded.items() if v == top)
    cells = {name: f"{v:.{digits}f}" if math.isfinite(v) else "–" for name, v in values.items()}
    return Column(group, title, cells, best, _NOTES[title])


def rich_table(comparison: Comparison) -> "Text":
    """For a terminal; the best of each column is bold.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> rich_table(found).plain.split() == plain_table(found).replace("*", " ").split()
        True
    """
    from rich.text import Text

    table = Text(no_wrap=True, overflow="ignore")
    styles = {"group": "bold", "title": "dim", "best": "bold green"}
    for line in _layout(comparison):
        for text, role in line:
            table.append(text, styles.get(role, ""))
        table.append("\n")
    table.rstrip()
    return table


def plain_table(comparison: Comparison) -> str:
    """For a log or a text file; the best of each column has a star.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> print(plain_table(evaluate(detectors, (x, y), {"wide": 9 * x})).splitlines()[1].strip())
        method  AUROC ↑   FPR@95 ↓   AURC ↓
    """
    return "\n".join(
        "".join(f"{text[:-1]}*" if role == "best" else text for text, role in line).rstrip()
        for line in _layout(comparison)
    )


def _layout(comparison: Comparison) -> list[list[tuple[str, str]]]:
    """Lines of (text, what it is); every cell but the first ends in a space, for a star."""
    shown = columns(comparison)
    first = max(len(name) for name in ("method", *comparison.methods))
    widths = [2 + max(len(text) for text in (c.title, *c.cells.values())) for c in shown]
    over = [(" " * first, "group")]
    for place, column in enumerate(shown):
        if place and column.group == shown[place - 1].group:
            continue  # a set's name stands over all of its columns
        mine = [i for i, other in enumerate(shown) if other.group == column.group]
        room = sum(widths[i] for i in mine) + len(mine)
        widths[mine[-1]] += max(0, len(column.group) + 3 - room)
        room = max(room, len(column.group) + 3)
        over.append((f"{column.group} ".rjust(room), "group"))
    titles = [f"{c.title} ".rjust(w + 1) for c, w in zip(shown, widths, strict=True)]
    lines = [over, [("method".ljust(first), "title"), *((title, "title") for title in titles)]]
    for name in comparison.methods:
        cells = [
            (f"{c.cells[name]} ".rjust(w + 1), "best" if name in c.best else "cell")
            for c, w in zip(shown, widths, strict=True)
        ]
        lines.append([(name.ljust(first), "method"), *cells])
    return lines
