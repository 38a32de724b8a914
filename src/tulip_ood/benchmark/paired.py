"""Is one score better than another on the same inputs, or is it chance?

Two detectors are judged on the same inputs, so their numbers rise and fall together; what counts
is the difference, with a standard error of its own.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tulip_ood.numerics import metrics

__all__ = ["Difference", "aurc_difference", "auroc_difference", "mean_auroc_difference"]

_RESAMPLES = 200
_BEYOND_CHANCE = 2.0  # standard errors


class Difference(NamedTuple):
    """Second minus first, and how far chance alone would move it.

    Example:
        >>> Difference(0.03, 0.01).clear, Difference(0.01, 0.01).clear
        (True, False)
    """

    value: float
    error: float

    @property
    def clear(self) -> bool:
        """Whether it is more than two standard errors from 0."""
        return abs(self.value) > _BEYOND_CHANCE * self.error


def auroc_difference(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Difference:
    """AUROC of the second minus that of the first, with DeLong's standard error (1988).

    Args:
        first: Scores of the ID inputs and of the OOD inputs by one detector.
        second: The same inputs by the other.

    Example:
        >>> import torch
        >>> a = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.5, 3.0])
        >>> auroc_difference(a, a)
        Difference(value=0.0, error=0.0)
    """
    return mean_auroc_difference((first[0], [first[1]]), (second[0], [second[1]]))


def mean_auroc_difference(
    first: tuple[Tensor, Sequence[Tensor]], second: tuple[Tensor, Sequence[Tensor]]
) -> Difference:
    """The same for the mean AUROC over several OOD sets, which share their ID inputs.

    Args:
        first: Scores of the ID inputs, and of each OOD set, by one detector.
        second: The same inputs by the other.

    Example:
        >>> import torch
        >>> a = torch.tensor([0.0, 1.0, 2.0]), [torch.tensor([1.5, 3.0]), torch.tensor([1.0])]
        >>> mean_auroc_difference(a, (-a[0], [-part for part in a[1]])).value
        -0.3333333333333333
    """
    inside, outside = [], []
    for mine, theirs in zip(second[1], first[1], strict=True):
        ours, others = _placements(second[0], mine), _placements(first[0], theirs)
        inside.append(ours[0] - others[0])
        outside.append(ours[1] - others[1])
    shared, n = torch.stack(inside).mean(dim=0), len(outside)
    variance = float(shared.var()) / shared.numel() if shared.numel() > 1 else 0.0
    variance += sum(float(p.var()) / p.numel() / n**2 for p in outside if p.numel() > 1)
    return Difference(sum(float(part.mean()) for part in outside) / n, math.sqrt(variance))


def _placements(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """For each ID score the share of OOD above it, for each OOD score the share of ID below it."""
    low, high = inside.to(torch.float64).contiguous(), outside.to(torch.float64).contiguous()

    def share_below(values: Tensor, of: Tensor) -> Tensor:
        rising = of.sort().values
        left = torch.searchsorted(rising, values, right=False)
        right = torch.searchsorted(rising, values, right=True)
        return (left + right).to(torch.float64) / (2 * rising.numel())

    return 1.0 - share_below(low, high), share_below(high, low)


def aurc_difference(first: Tensor, second: Tensor, wrong: Tensor, *, seed: int = 0) -> Difference:
    """AURC of the second score minus that of the first, with a bootstrap standard error.

    Args:
        first: Scores by one detector, [N].
        second: Scores of the same inputs by the other, [N].
        wrong: 1 where the network's answer is wrong, [N].
        seed: Decides the resamples.

    Example:
        >>> import torch
        >>> wrong = torch.tensor([0.0, 0.0, 0.0, 1.0])
        >>> round(aurc_difference(-torch.arange(4.0), torch.arange(4.0), wrong).value, 4)
        -0.4583
    """
    generator = torch.Generator().manual_seed(seed)
    n = wrong.numel()
    drawn = [
        _aurc_gap(first[rows], second[rows], wrong[rows])
        for rows in (torch.randint(n, (n,), generator=generator) for _ in range(_RESAMPLES))
    ]
    spread = torch.tensor(drawn, dtype=torch.float64).std()
    return Difference(_aurc_gap(first, second, wrong), float(spread))


def _aurc_gap(first: Tensor, second: Tensor, wrong: Tensor) -> float:
    return metrics.aurc(second, wrong) - metrics.aurc(first, wrong)
