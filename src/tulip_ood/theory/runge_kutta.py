"""An explicit Runge–Kutta method of order 5 with error control (Dormand & Prince 1980)."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["Integrated", "integrate"]

# Row i weighs the slopes before stage i; the last row is also the solution of order 5, so its
# slope is the next step's first.
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
# Order 5 less order 4.
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class Integrated(NamedTuple):
    """Where an integration ended.

    Attributes:
        state: y at the end.
        time: When that is.
        steps: Accepted steps.

    Example:
        >>> Integrated(state=None, time=1.0, steps=12).steps
        12
    """

    state: Tensor
    time: float
    steps: int


def _mix(weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        if weight:
            total = total + weight * slope
    return total


def integrate(
    slope: Callable[[Tensor], Tensor],
    state: Tensor,
    *,
    time: float,
    first_step: float,
    error: Callable[[Tensor, Tensor], float],
    stop: Callable[[Tensor], bool] = lambda _: False,
    max_steps: int = 100_000,
) -> Integrated:
    """dy/dt = slope(y) from y(0) = state to `time`, or until `stop` says so.

    Args:
        slope: The right side; it may not depend on t.
        state: y(0).
        time: The end, may be infinite if `stop` will come true.
        first_step: The first step to try.
        error: Of (estimated error of the new state, new state): its size in units of what is
            allowed; a step is taken if it is at most 1.
        stop: Of the slope at an accepted state (and at the start): end here.
        max_steps: Steps tried before giving up.

    Example:
        >>> import torch
        >>> def allowed(wrong, y): return float(wrong.abs().max()) / 1e-10
        >>> end = integrate(lambda y: -y, torch.ones(1).double(), time=1.0, first_step=0.1,
        ...                 error=allowed)
        >>> abs(float(end.state) * 2.718281828459045 - 1) < 1e-9
        True
    """
    now, step, taken = 0.0, first_step, 0
    first = slope(state)
    for _ in range(max_steps):
        if now >= time or stop(first):
            return Integrated(state, now, taken)
        last = now + step >= time
        step = time - now if last else step
        slopes, new = [first], state
        for weights in _STAGES:
            new = state + step * _mix(weights, slopes)
            slopes.append(slope(new))
        size = error(step * _mix(_ERROR, slopes), new)
        if size <= 1:
            state, first, taken = new, slopes[-1], taken + 1
            now = time if last else now + step
        # The usual rule for order 5: aim at 0.9 of the allowance, change by at most 0.2 to 5.
        grown = 5.0 if size == 0 else 0.9 * size**-0.2 if math.isfinite(size) else 0.2
        step *= min(5.0, max(0.2, grown))
    raise InputError(
        f"no end after {max_steps} steps, at time {now:.6g} of {time:.6g}: ask for a shorter time, "
        "a larger residual or tolerance, or allow more steps"
    )
