"""Paired bootstrap of all methods at once: the same resampled images for everyone.

ID images are resampled once and shared by all OOD sets; each OOD set's images are resampled for
itself. A resample is a vector of weights, so that a metric of all resamples is a few cumulative
sums over scores that are sorted once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.benchmark.results import Comparison, MethodResult
from tulip_ood.numerics.random import uniform

__all__ = ["Interval", "Resamples", "differences", "resample"]

METRICS = ("auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id", "aurc")


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


def _weights(n: int, resamples: int, seed: int, name: str) -> Tensor:
    """How often each of n images is drawn, [B, n], float32."""
    drawn = (
        (uniform((resamples, n), seed=seed, name=f"bootstrap/{name}") * n).long().clamp_max(n - 1)
    )
    ones = torch.ones(resamples, n)
    return torch.zeros(resamples, n).scatter_add_(1, drawn, ones)


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
    inside = _weights(len(first.id_scores), resamples, seed, "id")
    outside = {
        name: _weights(len(part.scores), resamples, seed, name) for name, part in first.sets.items()
    }
    return Resamples(
        {name: _metrics(result, inside, outside) for name, result in comparison.methods.items()}
    )


def _metrics(
    result: MethodResult, inside: Tensor, outside: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    order = result.id_scores.argsort(stable=True)
    scores, weights = result.id_scores[order], inside[:, order].cumsum(dim=1, dtype=torch.float64)
    sums: dict[str, list[Tensor]] = {name: [] for name in METRICS[:3]}
    for name, part in result.sets.items():
        own = part.scores.argsort(stable=True)
        theirs = part.scores[own]
        drawn = outside[name][:, own].to(torch.float64)
        sums["auroc"].append(_auroc(scores, weights, theirs, drawn))
        mass = drawn.cumsum(dim=1)
        sums["id_flagged_at_95_ood"].append(_id_flagged(scores, weights, theirs, mass))
        sums["ood_missed_at_95_id"].append(_ood_missed(scores, weights, theirs, mass))
    found = {name: torch.stack(parts).mean(dim=0) for name, parts in sums.items() if parts}
    wrong = result.wrong[order]
    if not bool(wrong.isnan().any()):
        found["aurc"] = _aurc(inside[:, order].to(torch.float64), wrong)
    return found


def _mass_below(weights: Tensor, places: Tensor) -> Tensor:
    """Cumulative weight before each place, [B, len(places)]."""
    start = weights.new_zeros(len(weights), 1)
    return torch.cat([start, weights], dim=1)[:, places]


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
    flagged = weights[:, -1] - _mass_below(weights, below).diagonal()
    return flagged / weights[:, -1]


def _ood_missed(inside: Tensor, weights: Tensor, outside: Tensor, mass: Tensor) -> Tensor:
    """OOD at or below the smallest threshold that accepts 95 % of the ID mass."""
    enough = weights >= 0.95 * weights[:, -1:] - 1e-9
    place = enough.to(torch.int8).argmax(dim=1)
    accepted = torch.searchsorted(outside, inside[place].contiguous(), right=True)
    return _mass_below(mass, accepted).diagonal() / mass[:, -1]


def _aurc(drawn: Tensor, wrong: Tensor) -> Tensor:
    """Mean over the drawn images of the risk up to and including each."""
    covered = drawn.cumsum(dim=1)
    errors = (drawn * wrong).cumsum(dim=1)
    risk = errors / covered.clamp_min(1.0)
    return (risk * drawn).sum(dim=1) / drawn.sum(dim=1)


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


def _value(comparison: Comparison, method: str, metric: str) -> float:
    if metric == "aurc":
        return comparison.methods[method].aurc
    return comparison.mean(method, metric)
