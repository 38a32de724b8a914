"""Paired bootstrap of all methods at once: the same resampled images for everyone.

ID images are resampled once and shared by all OOD sets; each OOD set's images are resampled for
itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.weighted import OF_SETS, Draws, reweigh

__all__ = ["Interval", "Resamples", "clear_gains", "differences", "resample"]

_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval.

    Attributes:
        value: The difference on the images themselves.
        low: The 2.5th percentile over resamples.
        high: The 97.5th.

    Example:
        >>> Interval(0.02, 0.01, 0.03).clear, Interval(0.1, -0.3, -0.05).clear
        (True, False)
    """

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the difference and its whole interval lie on the same side of 0."""
        return min(self.value, self.low) > 0 or max(self.value, self.high) < 0


@dataclass(frozen=True)
class Resamples:
    """Every metric of every method on every resample, averaged over the OOD sets, [B].

    Example:
        >>> import torch
        >>> Resamples({"msp": {"auroc": torch.zeros(3)}}).values["msp"]["auroc"].shape
        torch.Size([3])
    """

    values: Mapping[str, Mapping[str, Tensor]]


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
    inside = Draws(comparison.n_id, len(first.id_scores), seed, "id")
    outside = {
        name: Draws(comparison.n_ood[name], len(part.scores), seed, f"ood/{name}")
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
            redrawn = reweigh(result, drawn, others)
            metrics = _over_all_sets(redrawn.sets) if redrawn.sets else {}
            if redrawn.aurc is not None:
                metrics["aurc"] = redrawn.aurc
            for metric, values in metrics.items():
                found[name].setdefault(metric, []).append(values)
    return Resamples({n: {m: torch.cat(v) for m, v in parts.items()} for n, parts in found.items()})


def _over_all_sets(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {m: torch.stack([part[m] for part in parts.values()]).mean(dim=0) for m in OF_SETS}


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
