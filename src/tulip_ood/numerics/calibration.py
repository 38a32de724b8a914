"""From labelled ID outputs to the envelope's constants: Θ_XX, the balanced λ, J* and σ².

γ is linear in J, so J* needs no further passes: only arithmetic on logits that are there.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.numerics import envelope
from tulip_ood.numerics.blocks import cached_blocks
from tulip_ood.numerics.tasks import Regression, Task

__all__ = [
    "NOT_SEARCHED",
    "CalibratedJ",
    "balanced_lambda",
    "calibrate_j",
    "mean_log_likelihood",
    "mean_trace",
]

_GRID = torch.logspace(-2, 2, 33, dtype=torch.float64, device="cpu")
_LARGEST_J = 1e6
_GOLDEN = 0.6180339887498949
# A likelihood that rises by less than this (nats an input) is no reason to leave J = 0.
_WORTH = 1e-6


def mean_trace(trace: Tensor) -> float:
    """Θ_XX = mean Θ over ID validation data, on the scale of Θ.

    Example:
        >>> import torch
        >>> mean_trace(torch.tensor([1.0, 3.0]))
        2.0
    """
    return float(trace.mean())


def balanced_lambda(trace_xx: float, mean_drift: float) -> float:
    """λ = 2 Θ_XX / mean D: S averages to 0 on ID data, whatever the unit of the logits.

    Example:
        >>> balanced_lambda(3.0, 2.0)
        3.0
    """
    return 2.0 * trace_xx / mean_drift if mean_drift > 0 else 0.0


@dataclass(frozen=True)
class CalibratedJ:
    """What the likelihood chose.

    Attributes:
        j: J* ≥ 0, the maximiser.
        noise_var: σ² for each output at J* (regression), else None.
        noise_var_at_0: The same at J = 0.
        log_likelihood: Mean log-likelihood of an input at J*.
        log_likelihood_at_0: The same at J = 0, the plain network.

    Example:
        >>> CalibratedJ(0.0, None, None, -0.3, -0.3).j
        0.0
    """

    j: float
    noise_var: Tensor | None
    noise_var_at_0: Tensor | None
    log_likelihood: float
    log_likelihood_at_0: float


NOT_SEARCHED = CalibratedJ(0.0, None, None, math.nan, math.nan)


def calibrate_j(
    task: Task, base: Tensor, noisy: Tensor, unit_stretch: Tensor, labels: Tensor
) -> CalibratedJ:
    """J* ≥ 0 maximises the likelihood of the averaged prediction (Sec. 4.2).

    A coarse grid from 0.01 to 100 and 0 itself, then a golden-section search around the best:
    the likelihood need not be unimodal. The grid goes on as long as its end is the best: a small
    ε needs a large J.

    Args:
        task: What the outputs mean.
        base: Base logits [N, …, o].
        noisy: Noisy logits [M, N, …, o].
        unit_stretch: γ at J = 1, [N, …].
        labels: As the task checked them.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import Classification
        >>> base = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> noisy = base + torch.tensor([[[-1.0, 1.0]], [[1.0, -1.0]]])
        >>> labels = torch.tensor([0, 0, 1])  # over-confident: one of three is wrong
        >>> calibrate_j(Classification(), base, noisy, torch.ones(3), labels).j > 1
        True
    """
    if isinstance(task, Regression):
        return _calibrate_regression(task, base, noisy, unit_stretch, labels)

    likelihood = _Likelihood(task, base, noisy, unit_stretch, labels)
    at_0 = likelihood([0.0])[0]
    if not bool((unit_stretch > 0).any()):
        return CalibratedJ(0.0, None, None, at_0, at_0)
    j, value = _maximise(likelihood, at_0)
    return CalibratedJ(j, None, None, value, at_0)


class _Likelihood:
    """The mean log-likelihood at several J at once, so that logits are read once for all of them.

    With thousands of classes reading them takes longer than the arithmetic. An input that is not
    stretched says the same at every J, and is asked once: half of them with the balanced λ.
    """

    def __init__(
        self, task: Task, base: Tensor, noisy: Tensor, unit_stretch: Tensor, labels: Tensor
    ) -> None:
        self._task, self._base, self._noisy = task, base, noisy
        self._stretch, self._labels = unit_stretch, labels
        moves = (unit_stretch != 0).reshape(len(unit_stretch), -1).any(dim=1)
        self._moving = moves.nonzero().squeeze(1)
        self._still = self._sums((~moves).nonzero().squeeze(1), [0.0])

    def __call__(self, js: Sequence[float]) -> list[float]:
        total, count = (self._still + self._sums(self._moving, js)).unbind()
        return (total / count.clamp_min(1.0)).tolist()

    def _sums(self, rows: Tensor, js: Sequence[float]) -> Tensor:
        """The sum of log-likelihoods at each J, and how many there are, [2, J]."""
        sums = torch.zeros(2, len(js), dtype=torch.float64, device=self._base.device)
        for part in cached_blocks(len(rows), self._noisy[:, :1].numel(), sums.device):
            index = rows[part]
            base = self._base[index].to(torch.float64)
            moved = self._noisy[:, index].to(torch.float64) - base
            stretch, labels = self._stretch[index].unsqueeze(-1), self._labels[index]
            drawn = torch.empty_like(moved)
            for i, j in enumerate(js):
                torch.addcmul(base, moved, stretch * j, out=drawn)
                each = self._task.log_likelihood(drawn, labels)
                sums[0, i] += each.nansum()
                sums[1, i] += (~each.isnan()).sum()
        return sums


_OfMany = Callable[[Sequence[float]], list[float]]  # a function of J, asked for several at once


def _maximise(f: _OfMany, at_0: float) -> tuple[float, float]:
    """The J ≥ 0 with the largest f; 0 unless something is worth more."""
    points = [0.0, *_GRID.tolist()]
    values = [at_0, *f(points[1:])]
    best = max(range(len(points)), key=values.__getitem__)
    while best == len(points) - 1 and points[best] < _LARGEST_J:
        points.append(points[-1] * points[-1] / points[-2])
        values += f(points[-1:])
        best += values[-1] > values[best]
    # On a plateau (inputs that are saturated at any large J), where it begins.
    best = next(i for i, value in enumerate(values) if value >= values[best] - _WORTH)
    # A lower point of the grid may stand at the foot of a higher hill: the next two are climbed.
    hills = [i for i in range(1, len(points) - 1) if values[i - 1] < values[i] >= values[i + 1]]
    hills = sorted((i for i in hills if values[i] < values[best]), key=values.__getitem__)
    around = (best, *hills[-2:])
    climbed = _climb(
        f, [_golden(points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]) for i in around]
    )
    j, value = max([(points[best], values[best]), *climbed], key=lambda point: point[1])
    return (j, value) if value > at_0 + _WORTH else (0.0, at_0)


_Search = Generator[float, float, tuple[float, float]]  # asks for f at J, ends with J and f there


def _climb(f: _OfMany, searches: Sequence[_Search]) -> list[tuple[float, float]]:
    """Searches that take equally many steps, side by side."""
    found: list[tuple[float, float]] = []
    asked = [next(search) for search in searches]
    while not found:
        for i, value in enumerate(f(asked)):
            try:
                asked[i] = searches[i].send(value)
            except StopIteration as end:
                found.append(end.value)
    return found


def _golden(low: float, high: float) -> _Search:
    """The maximum of a unimodal f in [low, high], to 1e-4 of the interval."""
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    fa = yield a
    fb = yield b
    for _ in range(20):
        if fa >= fb:
            high, b, fb = b, a, fa
            a = high - _GOLDEN * (high - low)
            fa = yield a
        else:
            low, a, fa = a, b, fb
            b = low + _GOLDEN * (high - low)
            fb = yield b
    return (a, fa) if fa >= fb else (b, fb)


def mean_log_likelihood(
    task: Task,
    base: Tensor,
    noisy: Tensor,
    stretch: Tensor,
    labels: Tensor,
    noise_var: Tensor | None = None,
) -> float:
    """Log-likelihood averaged over inputs (and labelled positions), in bounded memory.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import Classification
        >>> base, labels = torch.zeros(2, 2), torch.tensor([0, 1])
        >>> zero = torch.zeros(2)
        >>> round(mean_log_likelihood(Classification(), base, base[None], zero, labels), 4)
        -0.6931
    """
    total, count = 0.0, 0
    for part in cached_blocks(base.shape[0], noisy[:, :1].numel(), base.device):
        drawn = envelope.samples(base[part], noisy[:, part], stretch[part])
        each = task.log_likelihood(drawn, labels[part], noise_var)
        total += float(each.nansum())
        count += int((~each.isnan()).sum())
    return total / max(count, 1)


def _calibrate_regression(
    task: Regression, base: Tensor, noisy: Tensor, unit_stretch: Tensor, labels: Tensor
) -> CalibratedJ:
    """J and σ² together: for every J the best σ² of each output, by the same kind of search."""
    floor = 1e-6 * labels.var(dim=0, correction=0).clamp_min(1e-30)
    fitted: dict[float, Tensor] = {}

    def likelihood(j: float) -> float:
        drawn = envelope.samples(base, noisy, unit_stretch * j)
        residual = (labels - task.predict(drawn)).square()
        spread = task.variance(drawn, None)
        fitted[j] = _best_noise_variance(residual, spread, floor)
        return float(task.log_likelihood(drawn, labels, fitted[j]).mean())

    at_0 = likelihood(0.0)
    j, value = (0.0, at_0)
    if bool((unit_stretch > 0).any()):
        j, value = _maximise(lambda js: [likelihood(j) for j in js], at_0)
    return CalibratedJ(j, fitted[j], fitted[0.0], value, at_0)


def _best_noise_variance(residual: Tensor, spread: Tensor, floor: Tensor) -> Tensor:
    """For each output, σ² ≥ floor maximising the Gaussian likelihood given the spread [N, o]."""
    # Beyond the largest residual every variance is too large: the best σ² lies below it.
    top = torch.maximum(residual.amax(dim=0), floor)

    def objective(sigma2: Tensor) -> Tensor:
        variance = spread + sigma2
        return -(variance.log() + residual / variance).mean(dim=0)

    low, high = floor.log(), top.log()
    centre = high
    # A grid in log σ², then twice a finer one around the best point.
    for _ in range(3):
        steps = torch.linspace(0, 1, 64, dtype=torch.float64).unsqueeze(-1)
        grid = low + steps * (high - low)
        best = torch.stack([objective(sigma2) for sigma2 in grid.exp()]).argmax(dim=0)
        width = (high - low) / 63
        centre = grid.gather(0, best.unsqueeze(0)).squeeze(0)
        low, high = torch.maximum(centre - width, floor.log()), centre + width
    return centre.exp()
