"""How scores are spread: ID inputs against one OOD set, with the threshold between them."""

import torch
from torch import Tensor

from tulip_ood.benchmark.results import MethodResult
from tulip_ood.benchmark.verdict import in_words
from tulip_ood.report.html import Markup, element
from tulip_ood.report.plot import Plot, line_path
from tulip_ood.report.scale import Scale, score_scale

__all__ = ["histogram_chart"]

_BINS = 36


def histogram_chart(result: MethodResult, name: str) -> Markup:
    """Scores of ID test inputs and of one OOD set by one method.

    The axis is the same for all sets of a method. Scores beyond it (infinite ones, too) count in
    the last bin at that end.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> histogram_chart(found.methods["msp"], "wide").startswith("<svg")
        True
    """
    plot = Plot.sized(340, 236, top=28.0)
    all_scores = [result.id_scores, *(each.scores for each in result.sets.values())]
    x = score_scale(all_scores, plot.left, plot.right)
    edges = x.edges(_BINS)
    inside = _shares(result.id_scores, edges)
    outside = _shares(result.sets[name].scores, edges)
    highest = max(*inside, *outside)
    y = Scale(0.0, highest * 1.04, plot.bottom, plot.top)
    refused = result.sets[name].refused
    note = f"refused: {100 * refused:.0f} % of OOD, {100 * result.false_alarms:.0f} % of ID"
    words = (
        f"{100 * result.false_alarms:.1f} % of ID and {100 * refused:.1f} % of {name} lie above "
        f"the threshold of {result.threshold:.3g}."
    )
    return plot.draw(
        f"Scores by {in_words(result.name)}: ID and {name}",
        words,
        [
            _area(inside, edges, x, y, "id", f"ID test inputs: {len(result.id_scores)}"),
            _area(outside, edges, x, y, "ood", f"{name}: {len(result.sets[name].scores)}"),
            _threshold(plot, x(result.threshold)),
            element("text", note, x=plot.right, y=14, text_anchor="end", class_="remark"),
        ],
        x=[(x(v), text) for v, text in x.ticks(4)],
        y=[(y(v), text) for v, text in y.ticks(3, percent=True)],
        x_label=f"{in_words(result.name)}, unsure →",
        y_label="share of inputs",
    )


def _shares(scores: Tensor, edges: list[float]) -> list[float]:
    cuts = torch.tensor(edges[1:-1], dtype=torch.float64)
    bins = torch.bucketize(scores.to(torch.float64), cuts)
    shares: list[float] = (
        torch.bincount(bins, minlength=_BINS).to(torch.float64) / len(scores)
    ).tolist()
    return shares


def _area(
    shares: list[float], edges: list[float], x: Scale, y: Scale, kind: str, title: str
) -> Markup:
    points = [(x(edges[0]), y(0.0))]
    for i, share in enumerate(shares):
        points += [(x(edges[i]), y(share)), (x(edges[i + 1]), y(share))]
    points.append((x(edges[-1]), y(0.0)))
    return element(
        "path", element("title", title), d=line_path(points) + "Z", class_=f"area {kind}"
    )


def _threshold(plot: Plot, place: float) -> Markup:
    title = element("title", "the threshold: what lies to the right is refused")
    return element(
        "line", title, x1=place, x2=place, y1=plot.top - 8, y2=plot.bottom, class_="threshold"
    )
