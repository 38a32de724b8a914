"""Metrics of weighted images, for all resamples of a bootstrap at once.

A resample is a vector of weights, how often each image was drawn: a metric of all resamples is then
a few cumulative sums over scores that are sorted once. Positions of a dense output go with their
image.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.benchmark.results import MethodResult
from tulip_ood.numerics.random import uniform

__all__ = ["Draws", "Reweighed", "reweigh"]

OF_SETS = ("auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id")


class Draws:
    """How often each image of a set is drawn, in each resample.

    Args:
        images: How many images the set has.
        scores: How many scores: one an image, or one for each of its positions.
        seed: Decides the draws.
        name: Of the set: sets are drawn independently of each other.

    Example:
        >>> Draws(5, 5, 0, "id").block(0, 2).sum(dim=1)
        tensor([5., 5.], dtype=torch.float64)
    """

    def __init__(self, images: int, scores: int, seed: int, name: str) -> None:
        self.images, self._positions = images, scores // images
        self._seed, self._name = seed, name

    def block(self, first: int, last: int) -> Tensor:
        """[resamples, scores], float64."""
        counts = torch.stack([self._one(b) for b in range(first, last)])
        if self._positions > 1:
            counts = counts.repeat_interleave(self._positions, dim=1)
        return counts.to(torch.float64)

    def _one(self, index: int) -> Tensor:
        name = f"bootstrap/{self._name}"
        places = uniform((self.images,), seed=self._seed, name=name, index=index)
        drawn = (places * self.images).long().clamp_max(self.images - 1)
        return torch.bincount(drawn, minlength=self.images)


@dataclass(frozen=True)
class Reweighed:
    """The metrics of one method on every resample.

    Attributes:
        sets: By OOD set and metric, [B].
        aurc: Of the network's own errors, [B]; None where they are not known.

    Example:
        >>> Reweighed({}, None).aurc is None
        True
    """

    sets: dict[str, dict[str, Tensor]]
    aurc: Tensor | None


def reweigh(result: MethodResult, inside: Tensor, outside: Mapping[str, Tensor]) -> Reweighed:
    """All metrics of one method on every resample.

    Args:
        result: Its scores.
        inside: How often each ID score is drawn, [B, scores].
        outside: The same for each OOD set.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> result = evaluate(detectors, (x, y), {"wide": 9 * x}).methods["msp"]
        >>> once = torch.ones(1, 200, dtype=torch.float64)  # the images as they are
        >>> found = reweigh(result, once, {"wide": once}).sets["wide"]["auroc"]
        >>> abs(float(found) - result.sets["wide"].auroc) < 1e-12
        True
    """
    order = result.id_scores.argsort(stable=True)
    scores, drawn_inside = result.id_scores[order], inside[:, order]
    weights = drawn_inside.cumsum(dim=1)
    sets = {}
    for name, part in result.sets.items():
        own = part.scores.argsort(stable=True)
        theirs, drawn = part.scores[own], outside[name][:, own]
        mass = drawn.cumsum(dim=1)
        sets[name] = {
            "auroc": _auroc(scores, weights, theirs, drawn),
            "id_flagged_at_95_ood": _id_flagged(scores, weights, theirs, mass),
            "ood_missed_at_95_id": _ood_missed(scores, weights, theirs, mass),
        }
    known = ~result.wrong[order].isnan()
    if not bool(known.any()):
        return Reweighed(sets, None)
    wrong = result.wrong[order][known]
    return Reweighed(sets, _aurc(scores[known], drawn_inside[:, known], wrong))


def _mass_below(weights: Tensor, places: Tensor) -> Tensor:
    """Cumulative weight before each place, [B, len(places)]."""
    start = weights.new_zeros(len(weights), 1)
    return torch.cat([start, weights], dim=1)[:, places]


def _mass_before(weights: Tensor, places: Tensor) -> Tensor:
    """Cumulative weight before a place of its own for each resample, [B]."""
    before = weights.gather(1, (places - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
    return torch.where(places > 0, before, 0.0)


def _auroc(inside: Tensor, weights: Tensor, outside: Tensor, drawn: Tensor) -> Tensor:
    left = torch.searchsorted(inside, outside, right=False)
    right = torch.searchsorted(inside, outside, right=True)
    below = _mass_below(weights, left)
    if not torch.equal(left, right):  # ties count one half
        below = (below + _mass_below(weights, right)) / 2
    return (below * drawn).sum(dim=1) / (weights[:, -1] * drawn.sum(dim=1))


def _id_flagged(inside: Tensor, weights: Tensor, outside: Tensor, mass: Tensor) -> Tensor:
    """ID at or above the largest threshold that still catches 95 % of the OOD mass."""
    total = mass[:, -1:]
    missed = torch.cat([torch.zeros_like(total), mass[:, :-1]], dim=1)  # OOD mass below each score
    catches = missed <= 0.05 * total + 1e-9
    place = catches.sum(dim=1) - 1
    below = torch.searchsorted(inside, outside[place].contiguous(), right=False)
    return (weights[:, -1] - _mass_before(weights, below)) / weights[:, -1]


def _ood_missed(inside: Tensor, weights: Tensor, outside: Tensor, mass: Tensor) -> Tensor:
    """OOD at or below the smallest threshold that accepts 95 % of the ID mass."""
    enough = weights >= 0.95 * weights[:, -1:] - 1e-9
    place = enough.to(torch.int8).argmax(dim=1)
    accepted = torch.searchsorted(outside, inside[place].contiguous(), right=True)
    return _mass_before(mass, accepted) / mass[:, -1]


def _aurc(scores: Tensor, drawn: Tensor, wrong: Tensor) -> Tensor:
    """The mean risk over coverages, errors spread evenly over images of one score.

    Images of one score, drawn m times with e errors after M images with E errors, give the risks
    (E + i·e/m) / (M + i), i = 1 … m: together e + (E − M·e/m)(H(M+m) − H(M)), with H(n) = Σ 1/i.
    """
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    covered, errors = drawn.cumsum(dim=1)[:, last], (drawn * wrong).cumsum(dim=1)[:, last]
    start = covered.new_zeros(len(covered), 1)
    before = torch.cat([start, covered[:, :-1]], dim=1)
    errors_before = torch.cat([start, errors[:, :-1]], dim=1)
    m, e = covered - before, errors - errors_before
    most = int(covered[:, -1].max())
    steps = 1.0 / torch.arange(1, most + 1, dtype=torch.float64)
    harmonic = torch.cat([steps.new_zeros(1), steps.cumsum(dim=0)])
    rise = harmonic[covered.long()] - harmonic[before.long()]
    risks = e + (errors_before - before * e / m.clamp_min(1.0)) * rise
    return torch.where(m > 0, risks, 0.0).sum(dim=1) / covered[:, -1].clamp_min(1.0)
