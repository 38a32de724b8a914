"""The few numbers that matter most, large."""

import math

from tulip_ood.benchmark.results import GROUPS, Comparison
from tulip_ood.benchmark.verdict import in_words
from tulip_ood.detectors.base import Detector
from tulip_ood.numerics.thresholds import false_alarm_band
from tulip_ood.report.html import Markup, element
from tulip_ood.wording import percent

__all__ = ["tiles"]


def tiles(comparison: Comparison, detector: Detector, method: str, baseline: str | None) -> Markup:
    """AUROC of each group, AURC, and false alarms against what was promised.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> msp = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> tiles(evaluate({"msp": msp}, (x, y), {"wide": 9 * x}), msp, "msp", None).count("<li>")
        3
    """
    ours = comparison.methods[method]
    theirs = None if baseline is None else comparison.methods[baseline]
    shown: list[Markup] = []
    groups: list[str | None] = [group for group in GROUPS if comparison.in_group(group)]
    if not groups and comparison.sets:
        groups = [None]
    for group in groups:
        mean = comparison.mean(method, "auroc", group=group)
        other = None if baseline is None else comparison.mean(baseline, "auroc", group=group)
        title = "OOD inputs" if group is None else f"{group} OOD"
        note = ", ".join(comparison.in_group(group))
        shown.append(_tile(title, f"{100 * mean:.1f}", "% AUROC", _beside(baseline, other), note))
    if not math.isnan(ours.aurc):
        then = None if theirs is None else f"{in_words(theirs.name)}: {1000 * theirs.aurc:.2f}"
        right = percent(ours.accuracy)
        note = f"lower is better; the network is right on {right} of the test inputs"
        shown.append(_tile("own errors", f"{1000 * ours.aurc:.2f}", "× 10⁻³ AURC", then, note))
    alarms = f"{100 * ours.false_alarms:.1f}"
    promise, band = _promise(detector)
    note = f"of {comparison.n_id} in-distribution test inputs, at the threshold as shipped{band}"
    shown.append(_tile("false alarms", alarms, "% refused", promise, note))
    return element("ul", shown, class_="tiles")


def _beside(baseline: str | None, value: float | None) -> str | None:
    return None if baseline is None or value is None else f"{in_words(baseline)}: {100 * value:.1f}"


def _promise(detector: Detector) -> tuple[str | None, str]:
    """What the threshold promises on average, and the 90 % band for one calibration set."""
    threshold, calibration = detector.threshold, detector.calibration
    if threshold is None or threshold.kind != "false_alarm":
        return None, ""
    promise = f"promised: {100 * threshold.target:g}"
    if calibration.weights is not None:
        return promise, ""
    low, high = false_alarm_band(calibration.n_inputs, threshold.target)
    return promise, f"; to be expected: {100 * low:.1f} to {100 * high:.1f}"


def _tile(title: str, value: str, unit: str, beside: str | None, note: str) -> Markup:
    return element(
        "li",
        element("h2", title),
        element("p", element("b", value), " ", unit, class_="value"),
        element("p", beside, class_="beside") if beside else None,
        element("p", note, class_="note-line"),
    )
