"""From numbers to places on an axis, and the numbers worth writing beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Scale", "score_scale"]

_HUGE = 1e100  # no axis reaches further, so that differences stay finite
_WIDE = 50.0  # q90/q10 beyond which positive scores are shown on a logarithmic axis


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis.

    Attributes:
        low: The number at `start`.
        high: The number at `end`.
        start: Where the axis begins, in pixels.
        end: Where it ends.
        log: Whether equal ratios, rather than equal differences, take equal room.

    Example:
        >>> axis = Scale(0.0, 1.0, 40.0, 240.0)
        >>> axis(0.5), [text for _, text in axis.ticks(2)]
        (140.0, ['0', '0.5', '1'])
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a number lies; beyond the ends it lies at the end."""
        share = (self._warp(value) - self._warp(self.low)) / (
            self._warp(self.high) - self._warp(self.low)
        )
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _warp(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def edges(self, bins: int) -> list[float]:
        """The numbers between `bins` pieces of equal room."""
        low, high = self._warp(self.low), self._warp(self.high)
        steps = [low + (high - low) * i / bins for i in range(bins + 1)]
        return [math.exp(step) for step in steps] if self.log else steps

    def ticks(self, about: int = 5, *, percent: bool = False) -> list[tuple[float, str]]:
        """Round numbers on the axis, and how they are written."""
        if self.log:
            return self._decades(about)
        step = _round_step((self.high - self.low) / max(1, about))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        values = [i * step for i in range(first, last + 1)]
        digits = max(0, -math.floor(math.log10(step * (100 if percent else 1)) + 1e-9))
        if digits > 4 or max(abs(self.low), abs(self.high)) >= 1e5:
            return [(value, f"{value:.4g}") for value in values]
        if percent:
            return [(value, f"{100 * value:.{digits}f} %") for value in values]
        texts = [f"{value:.{digits}f}".replace("-", "−") for value in values]
        return list(zip(values, (_shorter(texts)), strict=True))

    def _decades(self, about: int) -> list[tuple[float, str]]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, math.ceil((last - first + 1) / about))
        return [(10.0**i, _power(i)) for i in range(last, first - 1, -every)]


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not smaller than asked for."""
    scale = 10.0 ** math.floor(math.log10(rough))
    return next(scale * m for m in (1, 2, 5, 10) if scale * m >= rough * (1 - 1e-9))


def _shorter(texts: Sequence[str]) -> list[str]:
    return [
        "0" if float(text.replace("−", "-")) == 0 else text.removesuffix(".0") for text in texts
    ]


def _power(exponent: int) -> str:
    if -3 < exponent < 3:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def score_scale(scores: Sequence[Tensor], start: float, end: float) -> Scale:
    """An axis that shows all of these scores well; logarithmic where they span many decades.

    Example:
        >>> import torch
        >>> score_scale([torch.tensor([1e-6, 1e-3, 1.0])], 0, 100).log
        True
        >>> score_scale([torch.tensor([float("inf")])], 0, 100)
        Scale(low=0.0, high=1.0, start=0, end=100, log=False)
    """
    pooled = torch.cat([part.to(torch.float64).reshape(-1) for part in scores])
    pooled = pooled[pooled.isfinite()].clamp(-_HUGE, _HUGE)
    if pooled.numel() == 0:
        return Scale(0.0, 1.0, start, end)
    marks = torch.tensor([0.01, 0.1, 0.9], dtype=torch.float64)
    q01, q10, q90 = torch.quantile(_thinned(pooled), marks).tolist()
    low, high = float(pooled.min()), float(pooled.max())
    if q10 > 1 / _HUGE and q90 / q10 > _WIDE:
        return Scale(max(q01, 1e-8 * high), high, start, end, log=True)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1 / _HUGE):  # all the same
        room = max(0.5, 1e-6 * abs(high))
        return Scale(low - room, high + room, start, end)
    return Scale(low, high, start, end)


def _thinned(values: Tensor) -> Tensor:
    """At most a million, which is what `torch.quantile` takes."""
    return values[:: values.numel() // 1_000_000 + 1]
