"""Training at infinite width: gradient flow on a mean loss with a fixed NTK (Eq. 3).

    ∂f_t(x)/∂t = −η E_x'[Θ(x, x') ℓ'(f_t(x'); y(x'))],   the mean over the N training inputs.

With MSE from a Gaussian process this has a closed form (`ensemble`); other losses are integrated
(`linearised`). The learning rate of a *sum* of losses, as some texts have it, is η / N here.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import normal
from tulip_ood.theory.kernels import Kernels
from tulip_ood.theory.losses import Loss
from tulip_ood.theory.runge_kutta import integrate

__all__ = ["Ensemble", "Trained", "ensemble", "linearised", "prior"]


class Ensemble(NamedTuple):
    """Outputs of infinitely many trained networks: a Gaussian process (Eq. 1 in closed form).

    Attributes:
        mean: [m, o].
        covariance: [m, m], the same for each output; outputs are independent.

    Example:
        >>> import torch
        >>> Ensemble(torch.zeros(2, 1), torch.eye(2)).covariance.diagonal()
        tensor([1., 1.])
    """

    mean: Tensor
    covariance: Tensor


def _check_time(time: float, learning_rate: float) -> None:
    if not time >= 0:
        raise InputError(f"time must not be negative, got {time}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate must be positive, got {learning_rate}")


def _eigen(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (those below 0 by rounding are 0) and eigenvectors of a positive kernel."""
    values, vectors = torch.linalg.eigh(kernel)
    return values.clamp_min(0.0), vectors


def _learned(ntk: Tensor, cross: Tensor, rate: float) -> Tensor:
    """Θ_zX Θ_XX⁻¹ (I − exp(−rate Θ_XX)), [m, N]: how far test outputs follow the targets."""
    values, vectors = _eigen(ntk)
    # Θ_zX vanishes along directions that Θ_XX does not see: there the limit is 0 by 0.
    seen = values > values.max() * len(values) * torch.finfo(values.dtype).eps
    inverse = seen / values.where(seen, torch.ones_like(values))
    if math.isinf(rate):
        gain = inverse
    else:
        gain = torch.where(seen, -torch.expm1(-rate * values) * inverse, rate)
    return (cross @ vectors * gain) @ vectors.T


def ensemble(
    train: Kernels,
    cross: Kernels,
    test: Kernels,
    targets: Tensor,
    *,
    time: float = math.inf,
    learning_rate: float = 1.0,
) -> Ensemble:
    """Mean and covariance at `time` of networks drawn from the NNGP and trained with MSE.

    Lee et al. (2019), their equations for the mean and covariance of f_t, with mean 0 at
    initialisation. The limit t → ∞ is kernel regression with Θ.

    Args:
        train: K and Θ between the N training inputs.
        cross: K and Θ [m, N] between test and training inputs.
        test: K and Θ between the m test inputs (Θ is not used).
        targets: [N, o].
        time: t ≥ 0, may be infinite.
        learning_rate: η.

    Example:
        >>> import torch
        >>> from tulip_ood.theory.kernels import WideNetwork, kernels
        >>> x, z, net = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]]), WideNetwork(1)
        >>> found = ensemble(kernels(net, x), kernels(net, z, x), kernels(net, z),
        ...                  torch.tensor([[3.0], [5.0]]))
        >>> round(float(found.mean), 6), round(abs(float(found.covariance)), 6)
        (3.0, 0.0)
    """  # noqa: E501
    _check_time(time, learning_rate)
    n = len(train.ntk)
    if targets.ndim != 2 or len(targets) != n:
        raise InputError(f"expected targets [{n}, o], got shape {tuple(targets.shape)}")
    learned = _learned(train.ntk, cross.ntk, learning_rate * time / n)
    both = learned @ cross.nngp.T
    covariance = test.nngp + learned @ train.nngp @ learned.T - both - both.T
    return Ensemble(learned @ targets.to(torch.float64), covariance)


def prior(nngp: Tensor, *, draws: int, outputs: int = 1, seed: int = 0) -> Tensor:
    """Networks at initialisation: draws from the NNGP, [draws, n, outputs].

    Args:
        nngp: K between all inputs (training and test together), [n, n].
        draws: How many networks.
        outputs: How many outputs each has; they are independent.
        seed: Of the draws.

    Example:
        >>> import torch
        >>> f = prior(torch.ones(3, 3).double(), draws=2)
        >>> f.shape, bool((f[:, 0] - f[:, 2]).abs().max() < 1e-7)
        (torch.Size([2, 3, 1]), True)
    """
    values, vectors = _eigen(nngp)
    noise = normal((draws, len(nngp), outputs), seed=seed, name="theory.prior").to(torch.float64)
    return (vectors * values.sqrt()) @ noise


@dataclass(frozen=True)
class Trained:
    """Where linearised training ended.

    Attributes:
        train: f_t on the training inputs, [..., N, o].
        test: f_t on the test inputs, [..., m, o].
        pull: η ∫ ℓ'(f_s(x)) ds, [..., N, o]; the weights moved by −E_x[∇f(x)ᵀ pull(x)], so every
            output moved by −E_x[Θ(·, x) pull(x)].
        time: t.
        residual: max over networks and training inputs of ‖ℓ'‖.
        steps: Steps of the integration.

    Example:
        >>> import torch
        >>> zero = torch.zeros(1, 1)
        >>> Trained(zero, zero, zero, time=2.0, residual=0.0, steps=3).time
        2.0
    """

    train: Tensor
    test: Tensor
    pull: Tensor
    time: float
    residual: float
    steps: int


def linearised(
    train_ntk: Tensor,
    cross_ntk: Tensor,
    train_start: Tensor,
    test_start: Tensor,
    targets: Tensor,
    loss: Loss,
    *,
    time: float = math.inf,
    residual: float = 0.0,
    learning_rate: float = 1.0,
    tolerance: float = 1e-9,
    max_steps: int = 100_000,
) -> Trained:
    """Train the linearised network with any loss (Eq. 3), several starts at once.

    Integrated is the pull on each training input, not the outputs: all outputs are linear in it,
    so training and test outputs agree exactly, whatever the error of a step.

    Args:
        train_ntk: Θ between the training inputs, [N, N].
        cross_ntk: Θ between test and training inputs, [m, N].
        train_start: f_0 on the training inputs, [..., N, o].
        test_start: f_0 on the test inputs, [..., m, o].
        targets: [N, o].
        loss: `MSE`, `LOGISTIC`, `CROSS_ENTROPY` or another one.
        time: When to stop.
        residual: Stop as soon as every ‖ℓ'‖ is at most this; 0 for never.
        learning_rate: η.
        tolerance: Error allowed a step, as a share of the largest output (or of 1).
        max_steps: Steps before giving up.

    Example:
        >>> import torch
        >>> from tulip_ood.theory.losses import LOGISTIC
        >>> one = torch.ones(1, 1).double()
        >>> end = linearised(one, one, 0 * one, 0 * one, one, LOGISTIC, time=3.0)
        >>> f = float(end.train)
        >>> abs(f + 2.718281828459045 ** f - 1 - 3.0) < 1e-7   # f + e^f − 1 = t
        True
    """
    _check_time(time, learning_rate)
    if math.isinf(time) and not residual > 0:
        raise InputError("training without an end: give a finite time or a residual above 0")
    targets = loss.check(targets)
    n = len(targets)
    start = _starts(train_ntk, cross_ntk, train_start, test_start, targets)
    # Rows of Θ for all inputs, with the mean of Eq. 3 in it.
    pulls = torch.cat([train_ntk, cross_ntk]).to(torch.float64) / n

    def slope(pull: Tensor) -> Tensor:
        return learning_rate * loss.gradient(start[..., :n, :] - pulls[:n] @ pull, targets)

    def error(wrong: Tensor, pull: Tensor) -> float:
        largest = max(1.0, float((start - pulls @ pull).abs().max()))
        return float((pulls @ wrong).abs().max()) / (tolerance * largest)

    def largest_gradient(slopes: Tensor) -> float:
        return float(slopes.norm(dim=-1).max()) / learning_rate

    # Nothing moves faster than this; from a hundredth of it the error control takes over.
    rate = learning_rate * loss.lipschitz * float(pulls[:n].norm())
    end = integrate(
        slope,
        torch.zeros_like(start[..., :n, :]),
        time=time,
        first_step=0.01 / rate if rate > 0 else 1.0,
        error=error,
        stop=lambda slopes: residual > 0 and largest_gradient(slopes) <= residual,
        max_steps=max_steps,
    )
    outputs = start - pulls @ end.state
    return Trained(
        train=outputs[..., :n, :],
        test=outputs[..., n:, :],
        pull=end.state,
        time=end.time,
        residual=largest_gradient(slope(end.state)),
        steps=end.steps,
    )


def _starts(ntk: Tensor, cross: Tensor, train: Tensor, test: Tensor, targets: Tensor) -> Tensor:
    """f_0 on training and test inputs together, [..., N + m, o]; refuses shapes that disagree."""
    n, m, o = len(targets), len(cross), targets.shape[1]
    shapes = {
        "train_ntk": (tuple(ntk.shape), (n, n)),
        "cross_ntk": (tuple(cross.shape), (m, n)),
        "train_start": (tuple(train.shape[-2:]), (n, o)),
        "test_start": (tuple(test.shape), (*train.shape[:-2], m, o)),
    }
    for name, (came, wanted) in shapes.items():
        if came != wanted:
            raise InputError(f"{name}: expected shape {wanted} for these targets, got {came}")
    return torch.cat([train, test], dim=-2).to(torch.float64)
