"""NNGP and NTK of infinitely wide fully connected networks, in closed form.

At infinite width the outputs at initialisation are a Gaussian process with covariance K (the
NNGP), and the network trains as if it were linear, with Θ(x, x') = ∇f(x) ∇f(x')ᵀ fixed (the NTK).
With o outputs the NTK is this scalar kernel times the o × o identity.

Parametrisation (that of neural-tangents): a layer is W_std/√n · W x + b_std · b with W, b standard
normal and all trained; inputs count as x·x'/d; ReLU is not rescaled.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["Kernels", "WideNetwork", "diagonal", "kernels"]


class Kernels(NamedTuple):
    """The two kernels of one pair of input sets, float64.

    Attributes:
        nngp: K(x, x'), the covariance of the outputs at initialisation.
        ntk: Θ(x, x'), the inner product of the gradients.

    Example:
        >>> import torch
        >>> both = kernels(WideNetwork(depth=1), torch.eye(2))
        >>> both.nngp.shape, both.ntk.shape
        (torch.Size([2, 2]), torch.Size([2, 2]))
    """

    nngp: Tensor
    ntk: Tensor


@dataclass(frozen=True)
class WideNetwork:
    """An infinitely wide fully connected network.

    Attributes:
        depth: Hidden layers, at least 1; there are depth + 1 layers of weights.
        activation: "relu" or "erf".
        W_std: Standard deviation of the weights (before 1/√width).
        b_std: Standard deviation of the biases.

    Example:
        >>> WideNetwork(depth=2, activation="erf", W_std=1.5, b_std=0.05)
        WideNetwork(depth=2, activation='erf', W_std=1.5, b_std=0.05)
        >>> WideNetwork(depth=0)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: depth counts hidden layers and must be at least 1, got 0
    """

    depth: int
    activation: str = "relu"
    W_std: float = math.sqrt(2.0)
    b_std: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InputError(f"depth counts hidden layers and must be at least 1, got {self.depth}")
        if self.activation not in _ACTIVATIONS:
            names = ", ".join(sorted(_ACTIVATIONS))
            raise InputError(f"unknown activation {self.activation!r}: use one of {names}")
        for name in ("W_std", "b_std"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be finite and not negative, got {value}")


class _Pairs(NamedTuple):
    """Second moments of pairs of inputs at one layer; the shapes broadcast to those of `cross`."""

    first: Tensor  # K(x, x)
    second: Tensor  # K(x', x')
    cross: Tensor  # K(x, x')
    gap: Tensor  # K(x, x) + K(x', x') − 2 K(x, x'), without the cancellation

    def affine(self, W_std: float, b_std: float) -> "_Pairs":
        """After a layer of weights: the gap does not see the bias."""
        w, b = W_std**2, b_std**2
        return _Pairs(w * self.first + b, w * self.second + b, w * self.cross + b, w * self.gap)


def _one_minus_cosine(pairs: _Pairs, scale: Tensor) -> Tensor:
    """1 − cos θ of the two feature vectors, in [0, 2], exact where they (nearly) coincide.

    An arccos of cross/scale loses half of the digits at θ = 0, and the NTK is linear in θ there.
    """
    roots = pairs.first.sqrt() + pairs.second.sqrt()
    norms = (pairs.first - pairs.second) / roots.where(roots > 0, torch.ones_like(roots))
    inner = (pairs.gap - norms.square()).clamp_min(0.0)
    # A zero vector has no angle; every kernel it enters is 0 whatever we say here.
    return (inner / (2 * scale.where(scale > 0, torch.ones_like(scale)))).clamp_max(2.0)


def _relu(pairs: _Pairs) -> tuple[_Pairs, Tensor]:
    """E[φ(u) φ(v)] and E[φ'(u) φ'(v)] for φ = max(0, ·) (Cho & Saul 2009)."""
    scale = pairs.first.sqrt() * pairs.second.sqrt()
    q = _one_minus_cosine(pairs, scale)
    angle = 2 * torch.atan2(q.sqrt(), (2 - q).sqrt())
    sine = (q * (2 - q)).sqrt()
    lost = q - (sine - angle * (1 - q)) / math.pi  # 1 − κ₁(θ), small where the two are close
    gap = (pairs.first.sqrt() - pairs.second.sqrt()).square() / 2 + scale * lost
    slopes = (math.pi - angle) / (2 * math.pi)
    return _Pairs(pairs.first / 2, pairs.second / 2, scale * (1 - lost) / 2, gap), slopes


def _erf(pairs: _Pairs) -> tuple[_Pairs, Tensor]:
    """The same two for φ = erf (Williams 1997)."""
    first, second = 1 + 2 * pairs.first, 1 + 2 * pairs.second
    # The determinant is at least 1; as a product of sum and difference it keeps its digits.
    root = (first * second).sqrt()
    slopes = 4 / math.pi / ((root - 2 * pairs.cross) * (root + 2 * pairs.cross)).sqrt()
    own = [2 / math.pi * torch.asin((side - 1) / side) for side in (first, second)]
    cross = 2 / math.pi * torch.asin((2 * pairs.cross / root).clamp(-1.0, 1.0))
    gap = (own[0] + own[1] - 2 * cross).clamp_min(0.0)
    return _Pairs(own[0], own[1], cross, gap), slopes


_ACTIVATIONS = {"relu": _relu, "erf": _erf}


def _propagate(network: WideNetwork, pairs: _Pairs) -> Kernels:
    """Layer by layer: Θ ← K + W_std² Θ E[φ'φ']."""
    pairs = pairs.affine(network.W_std, network.b_std)
    ntk = pairs.cross
    for _ in range(network.depth):
        pairs, slopes = _ACTIVATIONS[network.activation](pairs)
        pairs = pairs.affine(network.W_std, network.b_std)
        ntk = pairs.cross + network.W_std**2 * ntk * slopes
    return Kernels(pairs.cross, ntk)


def _inputs(x: Tensor) -> Tensor:
    if x.ndim != 2 or x.shape[1] == 0:
        raise InputError(f"expected inputs [n, d] with d ≥ 1, got shape {tuple(x.shape)}")
    x = x.to(torch.float64)
    if not bool(x.isfinite().all()):
        raise InputError("the inputs contain NaN or Inf: leave those rows out")
    return x


def kernels(network: WideNetwork, a: Tensor, b: Tensor | None = None) -> Kernels:
    """K(a, b) and Θ(a, b) between two sets of inputs.

    Args:
        network: The architecture.
        a: Inputs [n, d].
        b: Inputs [m, d]; None for those of `a`.

    Returns:
        Two matrices [n, m], float64.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> both = kernels(WideNetwork(depth=1), x)
        >>> both.nngp
        tensor([[1.0000, 0.3183],
                [0.3183, 1.0000]], dtype=torch.float64)
        >>> both.ntk
        tensor([[2.0000, 0.3183],
                [0.3183, 2.0000]], dtype=torch.float64)
    """
    a = _inputs(a)
    b = a if b is None else _inputs(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"the two sets have {a.shape[1]} and {b.shape[1]} features each")
    d = a.shape[1]
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    first, second = (a * a).sum(dim=1) / d, (b * b).sum(dim=1) / d
    pairs = _Pairs(first[:, None], second[None, :], a @ b.T / d, distance.square() / d)
    return _propagate(network, pairs)


def diagonal(network: WideNetwork, a: Tensor) -> Kernels:
    """K(x, x) and Θ(x, x) for each input alone, two vectors [n], without the n × n matrices.

    Example:
        >>> import torch
        >>> diagonal(WideNetwork(depth=1), torch.tensor([[1.0, 0.0], [2.0, 0.0]])).ntk
        tensor([2.0000, 8.0000], dtype=torch.float64)
    """
    a = _inputs(a)
    own = (a * a).sum(dim=1) / a.shape[1]
    return _propagate(network, _Pairs(own, own, own, torch.zeros_like(own)))
