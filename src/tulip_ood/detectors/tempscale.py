"""Temperature scaling (Guo, Pleiss, Sun & Weinberger, ICML 2017)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import scores
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["Temperature", "TemperatureScaling"]

COLDEST, HOTTEST = 0.05, 1000.0  # beyond, probabilities are 0 and 1, or all equal
_STEPS = 200  # Newton needs a few; bisection alone would need 60


@dataclass(frozen=True)
class Temperature:
    """One number.

    Attributes:
        temperature: T, by which logits are divided.
        nll: The mean negative log-likelihood of the labels at T.
        nll_before: The same at T = 1.

    Example:
        >>> Temperature(1.5, 0.2, 0.3).temperature
        1.5
    """

    temperature: float
    nll: float
    nll_before: float


class TemperatureScaling(Detector):
    """One minus the largest probability of softmax(logits / T), T from the labels' likelihood.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.detectors.tempscale import TemperatureScaling
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = TemperatureScaling(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "tempscale"
    state_class: ClassVar[type] = Temperature

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)

    def _learn(self, passes: Passes) -> Temperature:
        assert passes.labels is not None
        return _best_temperature(passes.base, passes.labels)

    def _score(self, state: Temperature, passes: Passes) -> Tensor:
        return scores.msp(self._probs(state, passes))

    def _probs(self, state: Temperature, passes: Passes) -> Tensor:
        """The tempered probabilities, float64 [N, o]."""
        return (passes.base.to(torch.float64) / state.temperature).softmax(dim=-1)

    def _report_lines(self) -> list[str]:
        learned: Temperature = self._state
        lines = [
            f"temperature {learned.temperature:.4g}: the labels' negative log-likelihood is "
            f"{learned.nll:.4g} with it, {learned.nll_before:.4g} without"
        ]
        if learned.temperature == COLDEST:
            lines.append(
                "this is the lowest that is tried: the network answers (almost) all of this data "
                "rightly, and the likelihood only rises as the temperature falls"
            )
        if learned.temperature == HOTTEST:
            lines.append(
                "this is the highest that is tried: the network's answers say nothing about the "
                "labels"
            )
        return lines


def _best_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """The T of least negative log-likelihood, between `COLDEST` and `HOTTEST`."""

    def at(inverse: float) -> tuple[float, float, float]:
        return _likelihood(logits, labels, inverse)

    inverse = _minimum(lambda b: at(b)[1:], 1.0 / HOTTEST, 1.0 / COLDEST)
    bounds = {1.0 / HOTTEST: HOTTEST, 1.0 / COLDEST: COLDEST}
    return Temperature(bounds.get(inverse, 1.0 / inverse), at(inverse)[0], at(1.0)[0])


def _likelihood(logits: Tensor, labels: Tensor, inverse: float) -> tuple[float, float, float]:
    """Mean NLL of the labels at T = 1 / inverse, with both derivatives by `inverse`.

    NLL = logsumexp(βz) − βz_y is convex in β = 1/T: its slope is E_p[z] − z_y, its curvature
    Var_p[z].
    """
    total = slope = curvature = 0.0
    n = len(logits)
    for part in row_blocks(n, logits.shape[-1]):
        z = logits[part].to(torch.float64)
        own = z.gather(1, labels[part].unsqueeze(1)).squeeze(1)
        log_p = (inverse * z).log_softmax(dim=1)
        p = log_p.exp()
        mean = (p * z).sum(dim=1)
        total -= float(log_p.gather(1, labels[part].unsqueeze(1)).sum())
        slope += float((mean - own).sum())
        curvature += float((p * (z - mean.unsqueeze(1)).square()).sum())
    return total / n, slope / n, curvature / n


def _minimum(derivatives: Callable[[float], tuple[float, float]], low: float, high: float) -> float:
    """Where a convex function is least in [low, high]: Newton in log x, kept in the bracket."""
    if derivatives(low)[0] >= 0:
        return low
    if derivatives(high)[0] <= 0:
        return high
    a, b = math.log(low), math.log(high)
    at = min(max(0.0, a), b)
    for _ in range(_STEPS):
        x = math.exp(at)
        slope, curvature = derivatives(x)
        if slope == 0:
            break
        a, b = (a, at) if slope > 0 else (at, b)
        # In log x the function need not be convex: where Newton leaves the bracket, halve it.
        second = curvature * x + slope
        step = at - slope / second if second > 0 else math.inf
        following = step if a < step < b else (a + b) / 2
        if abs(following - at) <= 1e-14 * max(1.0, abs(at)):
            break
        at = following
    return math.exp(at)
