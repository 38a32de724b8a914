"""The surrogate posterior envelope: Alg. 1 of the paper, line by line, as pure functions.

Shapes: base and drifted logits […, o], noisy logits [M, …, o]; everything per input is […].
The dots are inputs, or inputs and positions for dense outputs. Results are float64: differences
of nearly equal float32 logits are squared and subtracted here.
"""

import math

import torch
from torch import Tensor

__all__ = ["bound", "drift", "samples", "stretch", "trace"]


def trace(base: Tensor, noisy: Tensor) -> Tensor:
    """Θ(z) = (1/M) Σ_i ‖f_i(z) − f(z)‖², line 6; carries ε² (Prop. 4.1).

    Example:
        >>> import torch
        >>> trace(torch.zeros(1, 2), torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]]))
        tensor([12.5000], dtype=torch.float64)
    """
    difference = noisy.to(torch.float64) - base.to(torch.float64)
    return difference.square().sum(dim=-1).mean(dim=0)


def drift(base: Tensor, drifted: Tensor | None, *, sqrt_outputs: bool = False) -> Tensor:
    """D(z) = ‖f(z; θ + εδΓ(θ − θ_ts)) − f(z)‖, line 7; times √o if `sqrt_outputs`.

    Without a drift pass it is ‖f(z)‖: for a homogeneous network and θ_ts = 0 the two are
    proportional to first order, and λ makes up for the factor.

    Example:
        >>> import torch
        >>> drift(torch.zeros(1, 4), torch.full((1, 4), 2.0), sqrt_outputs=True)
        tensor([8.], dtype=torch.float64)
        >>> drift(torch.tensor([[3.0, 4.0]]), None)
        tensor([5.], dtype=torch.float64)
    """
    moved = base.to(torch.float64)
    if drifted is not None:
        moved = drifted.to(torch.float64) - moved
    distance: Tensor = moved.norm(dim=-1)
    return distance * math.sqrt(base.shape[-1]) if sqrt_outputs else distance


def bound(
    trace: Tensor, drift: Tensor, *, trace_xx: float | Tensor, lam: float, j: float = 1.0
) -> Tensor:
    """S(z) = J² (Θ(z) + Θ_XX − λ D(z)), line 8; may be negative.

    Example:
        >>> import torch
        >>> bound(torch.tensor([1.0]), torch.tensor([2.0]), trace_xx=3.0, lam=0.5, j=2.0)
        tensor([12.])
    """
    return j**2 * (trace + trace_xx - lam * drift)


def stretch(bound: Tensor, trace: Tensor) -> Tensor:
    """γ = sqrt(max(S, 0) / Θ), line 9; 0 where Θ is 0 (nothing moved, nothing to stretch).

    Example:
        >>> import torch
        >>> stretch(torch.tensor([4.0, -1.0, 4.0]), torch.tensor([1.0, 1.0, 0.0]))
        tensor([2., 0., 0.])
    """
    moved = trace > 0
    ratio = bound.clamp_min(0.0) / torch.where(moved, trace, 1.0)
    return torch.where(moved, ratio.sqrt(), 0.0)


def samples(base: Tensor, noisy: Tensor, stretch: Tensor) -> Tensor:
    """f̃_i = f + γ (f_i − f), lines 10–12: the surrogate posterior samples, [M, …, o].

    Example:
        >>> import torch
        >>> samples(torch.zeros(1, 2), torch.ones(1, 1, 2), torch.tensor([3.0]))
        tensor([[[3., 3.]]], dtype=torch.float64)
    """
    wide = base.to(torch.float64)
    return wide + stretch.unsqueeze(-1) * (noisy.to(torch.float64) - wide)
