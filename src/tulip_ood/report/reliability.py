"""Reliability diagrams: when the network says 90 %, is it right nine times out of ten?"""

import math

from tulip_ood.benchmark.results import MethodResult
from tulip_ood.numerics import metrics
from tulip_ood.report.html import Markup, element
from tulip_ood.report.plot import Plot
from tulip_ood.report.scale import Scale
from tulip_ood.wording import counted

__all__ = ["reliability_chart"]

_BINS = 10
_Z = 1.96


def reliability_chart(result: MethodResult, title: str, class_: str) -> Markup | None:
    """Accuracy against stated probability, with 95 % intervals; None where there is neither.

    Args:
        result: Whose probabilities.
        title: What to call them.
        class_: The CSS class that gives the colour.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> result = evaluate(detectors, (x, y), {}).methods["msp"]
        >>> reliability_chart(result, "the network's own", "focus").startswith("<svg")
        True
    """
    usable = ~(result.wrong.isnan() | result.confidence.isnan())
    if not bool(usable.any()):
        return None
    said, right = result.confidence[usable], 1.0 - result.wrong[usable]
    found = metrics.reliability(said, right, bins=_BINS)
    plot = Plot.sized(340, 320)
    x, y = Scale(0.0, 1.0, plot.left, plot.right), Scale(0.0, 1.0, plot.bottom, plot.top)
    marks = [element("line", x1=x(0), y1=y(0), x2=x(1), y2=y(1), class_="reference")]
    most = int(found.inputs.max())
    for stated, share, n in zip(*(column.tolist() for column in found), strict=True):
        low, high = _wilson(share, n)
        tip = f"{counted(n, 'input')}: {100 * stated:.1f} % stated, {100 * share:.1f} % right"
        marks += [
            element("line", x1=x(stated), x2=x(stated), y1=y(low), y2=y(high), class_="whisker"),
            element(
                "circle",
                element("title", tip),
                cx=x(stated),
                cy=y(share),
                r=3.0 + 7.0 * math.sqrt(n / most),
                class_="dot",
            ),
        ]
    return plot.draw(
        f"Reliability of {title}",
        f"Expected calibration error {100 * result.ece:.1f} %, negative log-likelihood "
        f"{result.nll:.3f}.",
        [element("g", marks, class_=class_)],
        x=[(x(v), text) for v, text in x.ticks(4, percent=True)],
        y=[(y(v), text) for v, text in y.ticks(4, percent=True)],
        x_label="probability stated",
        y_label="answers that are right",
    )


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return middle - half, middle + half
