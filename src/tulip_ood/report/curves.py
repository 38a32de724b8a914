"""ROC curves and risk–coverage curves: one line a method."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.verdict import in_words
from tulip_ood.numerics import metrics
from tulip_ood.report.html import Markup, element
from tulip_ood.report.palette import series_class
from tulip_ood.report.plot import Plot, line_path
from tulip_ood.report.scale import Scale

__all__ = ["risk_coverage_chart", "roc_chart"]

Curve = tuple[Tensor, Tensor]
_MOST_POINTS = 2000
_NEARLY_ALL = 0.98
_STEADY = 20  # the error rate among fewer inputs than this says little


def roc_chart(comparison: Comparison, name: str, focus: str, baseline: str | None) -> Markup:
    """OOD caught against ID refused, on one OOD set.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> roc_chart(found, "wide", "msp", None).startswith("<svg")
        True
    """
    curves = {
        method: metrics.roc_curve(result.id_scores, result.sets[name].scores)
        for method, result in comparison.methods.items()
    }
    plot = Plot.sized(340, 300)
    end = _where_all_is_caught(curves.values())
    x, y = Scale(0.0, end, plot.left, plot.right), Scale(0.0, 1.0, plot.bottom, plot.top)
    guessing = element("line", x1=x(0), y1=y(0), x2=x(end), y2=y(end), class_="reference")

    def tip(method: str) -> str:
        return f"AUROC {100 * comparison.methods[method].sets[name].auroc:.1f} %"

    return plot.draw(
        f"ROC curves, {name}",
        f"AUROC: {_list(comparison, tip)}.",
        [guessing, _lines(comparison, focus, baseline, x, y, curves, tip)],
        x=[(x(v), text) for v, text in x.ticks(4, percent=True)],
        y=[(y(v), text) for v, text in y.ticks(4, percent=True)],
        x_label="ID refused",
        y_label="OOD caught",
    )


def risk_coverage_chart(comparison: Comparison, focus: str, baseline: str | None) -> Markup | None:
    """The error rate among accepted ID answers against how many are accepted.

    None for tasks in which no answer is right or wrong.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> risk_coverage_chart(evaluate(detectors, (x, y), {}), "msp", None).startswith("<svg")
        True
    """
    found = {name: _risk(comparison, name) for name in comparison.methods}
    curves = {name: curve for name, curve in found.items() if curve is not None}
    if focus not in curves:
        return None
    plot = Plot.sized(400, 310)
    top = max(float(risk.max()) for _, risk in curves.values())
    ideal = _ideal(comparison.methods[focus].wrong)
    x = Scale(_where_errors_begin(curves.values(), top), 1.0, plot.left, plot.right)
    y = Scale(0.0, top * 1.06 if top > 0 else 1.0, plot.bottom, plot.top)
    shade = element(
        "path",
        element("title", "the best that any score could do"),
        d=_path(ideal, x, y),
        class_="reference ideal",
    )

    def tip(method: str) -> str:
        return f"AURC {1000 * comparison.methods[method].aurc:.2f} × 10⁻³"

    return plot.draw(
        "Risk–coverage curves",
        f"AURC, lower is better: {_list(comparison, tip)}.",
        [shade, _lines(comparison, focus, baseline, x, y, curves, tip)],
        x=[(x(v), text) for v, text in x.ticks(5, percent=True)],
        y=[(y(v), text) for v, text in y.ticks(5, percent=True)],
        x_label="answers accepted, the surest first",
        y_label="wrong among them",
    )


def _where_all_is_caught(curves: Iterable[Curve]) -> float:
    """Where the axis can end: beyond it every curve runs along the top."""
    drawn = list(curves)

    def caught(end: float) -> float:
        return min(float(up[across <= end].max()) for across, up in drawn)

    return next((end for end in (0.25, 0.5) if caught(end) >= _NEARLY_ALL), 1.0)


def _where_errors_begin(curves: Iterable[Curve], top: float) -> float:
    """Where the axis can begin: before it every curve runs along the bottom."""
    drawn = list(curves)

    def risk(start: float) -> float:
        return max(
            float(up[across <= start].amax()) if bool((across <= start).any()) else 0.0
            for across, up in drawn
        )

    return next((start for start in (0.75, 0.5) if risk(start) <= 0.02 * top), 0.0)


def _risk(comparison: Comparison, name: str) -> Curve | None:
    result = comparison.methods[name]
    known = ~result.wrong.isnan()
    if not bool(known.any()):
        return None
    coverage, risk = metrics.risk_coverage(result.id_scores[known], result.wrong[known])
    first = min(_STEADY, len(coverage)) - 1
    return coverage[first:], risk[first:]


def _ideal(wrong: Tensor) -> Curve:
    known = wrong[~wrong.isnan()]
    return metrics.risk_coverage(known, known)


def _list(comparison: Comparison, tip: Callable[[str], str]) -> str:
    return ", ".join(
        f"{in_words(name)} {tip(name).split(' ', 1)[1]}" for name in comparison.methods
    )


def _lines(
    comparison: Comparison,
    focus: str,
    baseline: str | None,
    x: Scale,
    y: Scale,
    curves: Mapping[str, Curve],
    tip: Callable[[str], str],
) -> list[Markup]:
    """All methods; the baseline and the method in question last, so that they lie on top."""
    names = list(comparison.methods)
    order = sorted(curves, key=lambda name: (name == focus, name == baseline))
    return [
        element(
            "path",
            element("title", f"{in_words(name)}: {tip(name)}"),
            d=_path(curves[name], x, y),
            class_=series_class(names, name, focus, baseline),
            data_method=name,
        )
        for name in order
    ]


def _path(curve: Curve, x: Scale, y: Scale) -> str:
    across, up = (values.tolist() for values in _thin(curve))
    return line_path((x(a), y(b)) for a, b in zip(across, up, strict=True))


def _thin(curve: Curve) -> Sequence[Tensor]:
    n = len(curve[0])
    if n <= _MOST_POINTS:
        return curve
    chosen = torch.linspace(0, n - 1, _MOST_POINTS).round().long()
    return [values[chosen] for values in curve]
