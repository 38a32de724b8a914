"""The comparison as HTML tables: how well methods separate, and what their thresholds do."""

import math
from itertools import groupby

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.tables import Column, columns
from tulip_ood.benchmark.verdict import in_words
from tulip_ood.report.html import Markup, element

__all__ = ["comparison_table", "threshold_table"]


def comparison_table(comparison: Comparison, focus: str) -> Markup:
    """AUROC and FPR on every set, AURC; the best of each column is marked.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x}, {"wide": "far"})
        >>> comparison_table(found, "msp").count("<tr")
        3
    """
    shown = columns(comparison)
    over: list[Markup] = [element("td")]
    for group, members in groupby(shown, key=lambda column: column.group):
        kind = comparison.groups.get(group)
        heading = [group or "own errors", element("small", kind) if kind else None]
        over.append(
            element("th", heading, scope="colgroup", colspan=len(list(members)), class_="group")
        )
    titles = [
        element("th", "method", scope="col"),
        *(element("th", c.title, scope="col", title=c.note, class_="number") for c in shown),
    ]
    body = [
        element(
            "tr",
            _method(name),
            [_cell(column, name) for column in shown],
            class_="focus" if name == focus else None,
            data_method=name,
        )
        for name in comparison.methods
    ]
    return _table("Every method on every set", [over, titles], body)


def _method(name: str) -> Markup:
    code = element("code", name) if in_words(name) != name else None
    return element("th", in_words(name), " ", code, scope="row")


def _cell(column: Column, name: str) -> Markup:
    if name not in column.best:
        return element("td", column.cells[name], class_="number")
    best = element("strong", column.cells[name], element("span", " best", class_="unseen"))
    return element("td", best, class_="number best")


def threshold_table(comparison: Comparison, focus: str) -> Markup:
    """What each detector does with its own threshold, as it would be shipped.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> threshold_table(evaluate(detectors, (x, y), {"wide": 9 * x}), "msp").count("<tr")
        2
    """
    titles = ["ID refused", "wrong, of all ID", "wrong, of the accepted"]
    titles += [f"{name} refused" for name in comparison.sets]
    head = [element("th", "method", scope="col")]
    head += [element("th", title, scope="col", class_="number") for title in titles]
    body = []
    for name, result in comparison.methods.items():
        values = [result.false_alarms, 1.0 - result.accuracy, result.accepted_error]
        values += [result.sets[each].refused for each in comparison.sets]
        cells = [element("td", _percent(value), class_="number") for value in values]
        body.append(
            element(
                "tr",
                _method(name),
                cells,
                class_="focus" if name == focus else None,
                data_method=name,
            )
        )
    return _table("Every method at its own threshold", [head], body)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def _table(caption: str, head: list[list[Markup]], body: list[Markup]) -> Markup:
    table = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", [element("tr", row) for row in head]),
        element("tbody", body),
    )
    # A table wider than the page scrolls by itself; it must be reachable from the keyboard.
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
