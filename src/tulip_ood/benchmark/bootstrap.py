"""Paired bootstrap of all methods at once: the same resampled images for everyone.

ID images are resampled once and shared by all OOD sets; each OOD set's images are resampled for
itself. A resample is a vector of weights, so that a metric of all resamples is a few cumulative
sums over scores that are sorted once. Positions of a dense output go with their image.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.benchmark.results import Comparison, MethodResult
from tulip_ood.numerics.random import uniform

__all__ = ["Interval", "Resamples", "clear_gains", "differences", "resample"]

METRICS = ("auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id", "aurc")
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval.

    Attributes:
        value: The difference on the images themselves.
        low: The 2.5th percentile over resamples.
        high: The 97.5th.

    Example:
        >>> Interval(0.02, 0.01, 0.03).clear
        True
    """

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Resamples:
    """Every metric of every method on every resample, averaged over the OOD sets, [B].

    Example:
        >>> import torch
        >>> Resamples({"msp": {"auroc": torch.zeros(3)}}).values["msp"]["auroc"].shape
        torch.Size([3])
    """

    values: Mapping[str, Mapping[str, Tensor]]


class _Draws:
    """How often each image of a set is drawn."""

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


def resample(comparison: Comparison, *, resamples: int = 200, seed: int = 0) -> Resamples:
    """Bootstrap all metrics of all methods.

    Args:
        comparison: What was scored.
        resamples: B.
        seed: Decides the resamples.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> drawn = resample(evaluate(detectors, (x, y), {"wide": 9 * x}), resamples=20)
        >>> drawn.values["msp"]["auroc"].shape
        torch.Size([20])
    """
    first = next(iter(comparison.methods.values()))
    inside = _Draws(comparison.n_id, len(first.id_scores), seed, "id")
    outside = {
        name: _Draws(comparison.n_ood[name], len(part.scores), seed, f"ood/{name}")
        for name, part in first.sets.items()
    }
    largest = max(len(first.id_scores), *(len(p.scores) for p in first.sets.values()), 1)
    step = max(1, _BLOCK_BYTES // (8 * largest))
    found: dict[str, dict[str, list[Tensor]]] = {name: {} for name in comparison.methods}
    for begin in range(0, resamples, step):
        end = min(begin + step, resamples)
        drawn = inside.block(begin, end)
        others = {name: draws.block(begin, end) for name, draws in outside.items()}
        for name, result in comparison.methods.items():
            for metric, values in _metrics(result, drawn, others).items():
                found[name].setdefault(metric, []).append(values)
    return Resamples({n: {m: torch.cat(v) for m, v in parts.items()} for n, parts in found.items()})


def _metrics(
    result: MethodResult, inside: Tensor, outside: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    order = result.id_scores.argsort(stable=True)
    scores, drawn_inside = result.id_scores[order], inside[:, order]
    weights = drawn_inside.cumsum(dim=1)
    sums: dict[str, list[Tensor]] = {name: [] for name in METRICS[:3]}
    for name, part in result.sets.items():
        own = part.scores.argsort(stable=True)
        theirs, drawn = part.scores[own], outside[name][:, own]
        sums["auroc"].append(_auroc(scores, weights, theirs, drawn))
        mass = drawn.cumsum(dim=1)
        sums["id_flagged_at_95_ood"].append(_id_flagged(scores, weights, theirs, mass))
        sums["ood_missed_at_95_id"].append(_ood_missed(scores, weights, theirs, mass))
    found = {name: torch.stack(parts).mean(dim=0) for name, parts in sums.items() if parts}
    known = ~result.wrong[order].isnan()
    if bool(known.any()):
        wrong = result.wrong[order][known]
        found["aurc"] = _aurc(scores[known], drawn_inside[:, known], wrong)
    return found


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
    below = (_mass_below(weights, left) + _mass_below(weights, right)) / 2
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


def differences(
    comparison: Comparison, drawn: Resamples, reference: str
) -> dict[str, dict[str, Interval]]:
    """Each method minus a reference, metric by metric, with 95 % intervals.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> make = tulip_ood.detectors.make
        >>> detectors = {name: make(name, model).fit([(x, y)]) for name in ("msp", "ent")}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> differences(found, resample(found, resamples=20), "ent")["ent"]["auroc"].value
        0.0
    """
    out: dict[str, dict[str, Interval]] = {}
    for name, values in drawn.values.items():
        out[name] = {}
        for metric, mine in values.items():
            gap = mine - drawn.values[reference][metric]
            low, high = torch.quantile(gap, torch.tensor([0.025, 0.975], dtype=gap.dtype)).tolist()
            value = _value(comparison, name, metric) - _value(comparison, reference, metric)
            out[name][metric] = Interval(value, low, high)
    return out


def clear_gains(comparison: Comparison, drawn: Resamples, reference: str) -> dict[str, bool]:
    """Whose AUROC is above a reference's, however many methods were tried.

    The best of thirty methods that are all alike looks better than the reference: so the margin is
    the largest that any method's difference departs by from its own, in 95 % of the resamples.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> make = tulip_ood.detectors.make
        >>> detectors = {name: make(name, model).fit([(x, y)]) for name in ("msp", "ent")}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> clear_gains(found, resample(found, resamples=20), "ent")["ent"]
        False
    """
    base = drawn.values[reference]["auroc"]
    names = [name for name in drawn.values if name != reference]
    if not names:
        return {reference: False}
    gaps = torch.stack([drawn.values[name]["auroc"] - base for name in names])
    own = torch.tensor(
        [_value(comparison, n, "auroc") - _value(comparison, reference, "auroc") for n in names],
        dtype=gaps.dtype,
    )
    error = gaps.std(dim=1).clamp_min(1e-12)
    worst = ((gaps - own.unsqueeze(1)) / error.unsqueeze(1)).amax(dim=0)
    margin = float(torch.quantile(worst, 0.95))
    clear = own - margin * error > 0
    return {reference: False} | dict(zip(names, clear.tolist(), strict=True))


def _value(comparison: Comparison, method: str, metric: str) -> float:
    if metric == "aurc":
        return comparison.methods[method].aurc
    return comparison.mean(method, metric)
