"""Feature shaping as a part that can stand under any logit score, and inside TULiP's passes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics import shaping as maps
from tulip_ood.numerics.quantiles import quantiles
from tulip_ood.wording import percent

__all__ = ["SHAPINGS", "Shaping", "make_shaping"]

# At least so many of the validation features must not be negative where a map divides by a sum.
_NOT_NEGATIVE = 0.99


@dataclass(frozen=True)
class Kind:
    """A family of maps.

    Attributes:
        apply: (features, number) → features; the number is the percentile, or ReAct's clip.
        default: The published percentile.
        searched: OpenOOD's list of percentiles.
        divides: Whether it divides by a sum of features.

    Example:
        >>> SHAPINGS["scale"].default
        85.0
    """

    apply: Callable[[Tensor, float], Tensor]
    default: float
    searched: tuple[float, ...]
    divides: bool


_STEPS = tuple(float(p) for p in range(65, 100, 5))
SHAPINGS: dict[str, Kind] = {
    "react": Kind(maps.react, 90.0, (85.0, 90.0, 95.0, 99.0), divides=False),
    "ash-b": Kind(maps.ash_b, 90.0, _STEPS, divides=True),
    "ash-s": Kind(maps.ash_s, 90.0, _STEPS, divides=True),
    "ash-p": Kind(maps.ash_p, 90.0, _STEPS, divides=False),
    "scale": Kind(maps.scale, 85.0, _STEPS, divides=True),
}


@dataclass(frozen=True)
class Shaping:
    """A map of penultimate features with its numbers.

    Attributes:
        name: One of `SHAPINGS`.
        percentile: Of a row's features, or (ReAct) of all validation features.
        clip: ReAct's threshold, once it is known.

    Example:
        >>> import torch
        >>> learned = Shaping("react", 50.0).learned(torch.tensor([[0.0, 1.0, 2.0]]))
        >>> learned(torch.tensor([[0.0, 9.0, 0.5]]))
        tensor([[0.0000, 1.0000, 0.5000]])
    """

    name: str
    percentile: float
    clip: float | None = None

    def learned(self, features: Tensor) -> "Shaping":
        """With the numbers that ID features [N, d] give; refuses where it cannot work."""
        kind = SHAPINGS[self.name]
        if kind.divides:
            share = float((features >= 0).to(torch.float64).mean())
            if share < _NOT_NEGATIVE:
                raise ModelError(
                    f"{self.name} divides by sums of penultimate features, which are negative "
                    f"{percent(1 - share)} of the time in this network (at most 1 % is allowed): "
                    f"it is for networks whose last features come from a ReLU"
                )
        if self.name != "react":
            return self
        return replace(self, clip=quantiles(features, [self.percentile / 100.0])[0])

    def __call__(self, features: Tensor) -> Tensor:
        """Features [N, d] → features [N, d]."""
        if self.name == "react":
            assert self.clip is not None
            return maps.react(features, self.clip)
        return SHAPINGS[self.name].apply(features, self.percentile)


def make_shaping(spec: str) -> Shaping:
    """From a name, with its percentile after a colon if that is not the published one.

    Example:
        >>> make_shaping("scale").percentile, make_shaping("scale:65").percentile
        (85.0, 65.0)
        >>> make_shaping("dice")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown shaping 'dice'; choose from react, ash-b, ash-s, \
ash-p, scale
    """
    name, _, number = spec.partition(":")
    if name not in SHAPINGS:
        raise InputError(f"unknown shaping {name!r}; choose from {', '.join(SHAPINGS)}")
    try:
        percentile = float(number) if number else SHAPINGS[name].default
    except ValueError:
        percentile = -1.0
    if not 0 <= percentile < 100:
        raise InputError(f"shaping {spec!r}: the percentile must lie between 0 and 100")
    return Shaping(name, percentile)
