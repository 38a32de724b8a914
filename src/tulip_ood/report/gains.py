"""What a method gains on each OOD set over another: two dots and the room that chance has."""

import math

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.verdict import Verdict, in_words
from tulip_ood.report.html import Markup, element
from tulip_ood.report.plot import Plot
from tulip_ood.report.scale import Scale

__all__ = ["gains_chart"]

_ROW = 64.0


def gains_chart(comparison: Comparison, verdict: Verdict) -> Markup | None:
    """AUROC on each set by the baseline and by the method; None without a baseline or sets.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate, judge
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> make = tulip_ood.detectors.make
        >>> detectors = {name: make(name, model).fit([(x, y)]) for name in ("msp", "ent")}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> gains_chart(found, judge(found, "ent", "msp")).startswith("<svg")
        True
    """
    if verdict.baseline is None or not verdict.auroc:
        return None
    before = comparison.methods[verdict.baseline].sets
    after = comparison.methods[verdict.method].sets
    n = len(verdict.auroc)
    plot = Plot(400, 52 + n * _ROW, 14, 6, 386, 8 + n * _ROW)
    lowest = min(
        min(before[name].auroc, after[name].auroc - 2 * gain.error)
        for name, gain in verdict.auroc.items()
    )
    x = Scale(min(0.95, math.floor(20 * lowest) / 20), 1.0, plot.left + 8, plot.right - 8)
    marks = []
    for row, (name, gain) in enumerate(verdict.auroc.items()):
        y = plot.top + (row + 0.68) * _ROW
        old, new = before[name].auroc, after[name].auroc
        low, high = x(new - 2 * gain.error), x(new + 2 * gain.error)
        tip = f"{name}: {100 * old:.1f} → {100 * new:.1f} %, ±{200 * gain.error:.1f}"
        marks.append(
            element(
                "g",
                element("title", tip),
                element("text", name, x=plot.left, y=y - 19, class_="name"),
                element(
                    "text",
                    f"{100 * old:.1f} → {100 * new:.1f} %",
                    x=plot.right,
                    y=y - 19,
                    text_anchor="end",
                    class_="name value",
                ),
                element("line", x1=plot.left, x2=plot.right, y1=y, y2=y, class_="grid"),
                element("line", x1=low, x2=high, y1=y, y2=y, class_="chance"),
                element("circle", cx=x(old), cy=y, r=5.5, class_="hollow"),
                element("circle", cx=x(new), cy=y, r=6, class_="full"),
            )
        )
    words = "; ".join(
        f"{name} {100 * before[name].auroc:.1f} → {100 * after[name].auroc:.1f} %"
        for name in verdict.auroc
    )
    return plot.draw(
        f"AUROC, {in_words(verdict.baseline)} → {in_words(verdict.method)}",
        f"{words}.",
        [element("g", marks, class_="gains")],
        x=[(x(v), text) for v, text in x.ticks(4, percent=True)],
        x_label="AUROC",
    )
