"""The report's sections on the comparison: charts and tables, each with words that explain it."""

import math
from collections.abc import Sequence

import torch

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.verdict import Verdict, in_words
from tulip_ood.report.curves import risk_coverage_chart, roc_chart
from tulip_ood.report.histograms import histogram_chart
from tulip_ood.report.html import Child, Markup, element
from tulip_ood.report.palette import legend
from tulip_ood.report.reliability import reliability_chart
from tulip_ood.report.tables import comparison_table, threshold_table

__all__ = [
    "calibration_section",
    "errors_section",
    "histogram_section",
    "roc_section",
    "table_section",
    "usage_section",
]


def table_section(comparison: Comparison, method: str) -> list[Child]:
    """Both tables, and what their columns mean.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> len(table_section(found, "msp"))
        6
    """
    return [
        element(
            "p",
            "All methods look at the same trained network and the same inputs. Higher is better "
            "for ↑, lower for ↓; the best of each column is bold.",
            class_="lede",
        ),
        comparison_table(comparison, method),
        element(
            "p",
            element("b", "AUROC"),
            ": how often an OOD input scores higher than an ID one; 50 is guessing. ",
            element("b", "FPR@95"),
            ": ID inputs refused, in %, if 95 % of the OOD inputs must be caught. ",
            element("b", "AURC"),
            ": the error rate among the accepted answers, averaged over how many are accepted, "
            "× 10⁻³.",
            class_="small",
        ),
        element("h3", "At the threshold as shipped"),
        element(
            "p",
            "Each detector has set its own threshold on held-out validation data. This is what it "
            "would do tomorrow.",
        ),
        threshold_table(comparison, method),
    ]


def histogram_section(
    comparison: Comparison, method: str, baseline: str | None
) -> tuple[str, list[Child]]:
    """Scores before and after, each OOD set in a column.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> histogram_section(found, "msp", None)[0]
        'The scores'
    """
    heading = "The scores, before and after" if baseline else "The scores"
    if not comparison.sets:
        return heading, []
    shown: list[Child] = [
        element(
            "p",
            "The less the two hills overlap, the better they can be told apart. What lies to the "
            "right of the dashed line is refused.",
            class_="lede",
        ),
        element(
            "ul",
            element("li", element("span", class_="patch id"), "in-distribution test inputs"),
            element("li", element("span", class_="patch ood"), "out-of-distribution inputs"),
            class_="legend",
        ),
    ]
    for name in filter(None, (baseline, method)):
        when = "" if baseline is None else (" (before)" if name == baseline else " (after)")
        shown += [
            element("h3", in_words(name), when),
            _panels(
                [
                    (each, histogram_chart(comparison.methods[name], each), None)
                    for each in comparison.sets
                ]
            ),
        ]
    return heading, shown


def _panels(charts: Sequence[tuple[str, Markup, str | None]], class_: str = "panels") -> Markup:
    figures = [
        element(
            "figure",
            element("figcaption", title, element("small", note) if note else None),
            chart,
        )
        for title, chart, note in charts
    ]
    return element("div", figures, class_=class_)


def roc_section(comparison: Comparison, method: str, baseline: str | None) -> list[Child]:
    """A chart for each OOD set.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> roc_section(found, "msp", None)[-1].count("<svg")
        1
    """
    if not comparison.sets:
        return []
    charts = [
        (name, roc_chart(comparison, name, method, baseline), comparison.groups.get(name))
        for name in comparison.sets
    ]
    return [
        element(
            "p",
            "Each curve runs through all thresholds of one method: how much OOD it catches for how "
            "many good inputs refused. The nearer to the upper left corner the better; the "
            "dotted line is guessing. The axis ends where nearly all is caught.",
            class_="lede",
        ),
        legend(list(comparison.methods), method, baseline),
        _panels(charts),
    ]


def errors_section(comparison: Comparison, method: str, baseline: str | None) -> list[Child]:
    """Risk against coverage.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> len(errors_section(found, "msp", None))
        2
    """
    chart = risk_coverage_chart(comparison, method, baseline)
    if chart is None:
        return []
    notes = {
        name: f"{1000 * result.aurc:.2f}"
        for name, result in comparison.methods.items()
        if not math.isnan(result.aurc)
    }
    return [
        element(
            "p",
            "Even on inputs of the right kind the network is sometimes wrong. Let it answer only "
            "what it is surest of: how often is it wrong then? A score that knows the network’s "
            "mistakes keeps the curve low. The dotted line is the best that any score could do.",
            class_="lede",
        ),
        element(
            "div",
            element("figure", chart),
            element(
                "div",
                element("h3", "AURC × 10⁻³, lower is better"),
                legend(list(comparison.methods), method, baseline, notes),
            ),
            class_="beside-chart",
        ),
    ]


def calibration_section(comparison: Comparison, verdict: Verdict) -> list[Child]:
    """Reliability before and after.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate, judge
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> len(calibration_section(found, judge(found, "msp", None)))
        2
    """
    ours = comparison.methods[verdict.method]
    after = reliability_chart(ours, f"{in_words(verdict.method)}’s probabilities", "focus")
    if after is None:
        return []
    shown = [
        (f"{in_words(verdict.method)}’s probabilities", after, _calibration(ours.ece, ours.nll))
    ]
    words = (
        "When the network says 90 %, is it right nine times out of ten? Then the dots lie on the "
        "diagonal; below it the network claims too much. Larger dots stand for more inputs, "
        "whiskers are 95 % intervals."
    )
    if verdict.baseline is not None:
        theirs = comparison.methods[verdict.baseline]
        before = reliability_chart(theirs, "the network’s own probabilities", "baseline")
        if before is not None:
            note = _calibration(theirs.ece, theirs.nll)
            shown.insert(0, ("The network’s own probabilities", before, note))
        if before is not None and torch.allclose(
            ours.confidence, theirs.confidence, rtol=0.0, atol=1e-9, equal_nan=True
        ):
            words += (
                f" Here both are the same: {in_words(verdict.method)} found nothing to mend on "
                f"held-out data, and then it leaves the probabilities alone."
            )
    return [element("p", words, class_="lede"), _panels(shown, "panels two")]


def _calibration(ece: float, nll: float) -> str:
    return f"ECE {100 * ece:.2f} % · NLL {nll:.4f}"


_CODE = """import tulip_ood as tulip

detector = tulip.Tulip(model)        # any trained network that returns logits
detector.fit(val_loader)             # labelled inputs that training has not seen
result = detector.predict(x)         # .label .probs .p_value .accepted .reason
detector.save("detector.safetensors")
"""


def usage_section() -> list[Child]:
    """Five lines of Python.

    Example:
        >>> "detector.fit(val_loader)" in usage_section()[1]
        True
    """
    return [
        element(
            "p",
            "No retraining and no training data: a trained PyTorch network, and a few hundred "
            "labelled inputs that it was not trained on.",
            class_="lede",
        ),
        element("pre", element("code", _CODE)),
    ]
