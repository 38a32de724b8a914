"""Perturb-then-train (Eq. 3 and 4): what Theorem 3.1 bounds, computed.

The linearised network trains to t_s; copies of it are moved in function space; all train on over
ΔT. The distances at the end are the true left side of Eq. 5.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import normal, uniform
from tulip_ood.theory.bound import Bound
from tulip_ood.theory.flow import Trained, linearised
from tulip_ood.theory.losses import Loss

__all__ = ["Fluctuation", "perturb_then_train", "tightness", "waves"]


def waves(
    x: Tensor,
    *,
    alpha: float,
    draws: int,
    outputs: int = 1,
    frequency: float = 1.0,
    count: int = 3,
    seed: int = 0,
) -> Tensor:
    """Random perturbations Δf with ‖Δf(x)‖ ≤ α on all of ℝᵈ (A3), at the inputs x: [draws, n, o].

    A sum of cosines, Δf(x) = α Σ_r a_r cos(ω_r·x + φ_r) with Σ_r ‖a_r‖ = 1. A function of x and the
    seed: other inputs with the same seed are values of the same Δf.

    Args:
        x: Inputs [n, d].
        alpha: α.
        draws: How many perturbations.
        outputs: o.
        frequency: Standard deviation of ω.
        count: Cosines in each sum.
        seed: Of the draws.

    Example:
        >>> import torch
        >>> change = waves(torch.randn(50, 2), alpha=0.3, draws=4, outputs=5)
        >>> change.shape, bool((change.norm(dim=-1) <= 0.3).all())
        (torch.Size([4, 50, 5]), True)
    """
    d = x.shape[1]

    def drawn(shape: tuple[int, ...], name: str) -> Tensor:
        return normal(shape, seed=seed, name=f"theory.waves.{name}").to(torch.float64)

    amplitude = drawn((draws, count, outputs), "amplitude")
    amplitude = amplitude / amplitude.norm(dim=-1).sum(dim=-1)[:, None, None]
    wave = frequency * drawn((draws, d, count), "wave")
    phase = uniform((draws, 1, count), seed=seed, name="theory.waves.phase").to(torch.float64)
    change: Tensor = (x.to(torch.float64) @ wave + 2 * math.pi * phase).cos() @ amplitude
    return alpha * change


@dataclass(frozen=True)
class Fluctuation:
    """A network and its perturbed copies at the end of training.

    Attributes:
        plain: f from t_s to T: outputs [N, o] and [m, o], and its pull.
        perturbed: f̂ for each perturbation, [draws, N, o] and [draws, m, o].
        before: f_ts on the test inputs, [m, o].

    Example:
        >>> import torch
        >>> from tulip_ood.theory.losses import MSE
        >>> one = torch.ones(1, 1).double()
        >>> found = perturb_then_train(one, one, one, one, 0.1 * one[None], 0.1 * one[None],
        ...                            3 * one, MSE, duration=1.0)
        >>> round(float(found.distance), 4), round(found.beta, 4), round(found.K, 4)
        (0.0368, 0.0368, 0.791)
    """

    plain: Trained
    perturbed: Trained
    before: Tensor

    @property
    def distance(self) -> Tensor:
        """‖f_T(z) − f̂_T(z)‖, [draws, m]: the left side of Eq. 5."""
        apart: Tensor = (self.perturbed.test - self.plain.test).norm(dim=-1)
        return apart

    @property
    def beta(self) -> float:
        """The smallest β of A4: max over draws and X of ‖f_T(x) − f̂_T(x)‖."""
        return float((self.perturbed.train - self.plain.train).norm(dim=-1).max())

    @property
    def drift(self) -> Tensor:
        """‖∇f(z)(θ_T − θ_ts)‖ = ‖f_T(z) − f_ts(z)‖, [m]: the network is linear."""
        moved: Tensor = (self.plain.test - self.before).norm(dim=-1)
        return moved

    @property
    def K(self) -> float:  # noqa: N802
        """The largest K for which the proof of Eq. 6 works: 1 / sup_x ‖η ∫ ℓ'(f_t(x)) dt‖."""
        pull = float(self.plain.pull.norm(dim=-1).max())
        return 1 / pull if pull > 0 else math.inf


def perturb_then_train(
    train_ntk: Tensor,
    cross_ntk: Tensor,
    train_start: Tensor,
    test_start: Tensor,
    train_change: Tensor,
    test_change: Tensor,
    targets: Tensor,
    loss: Loss,
    *,
    duration: float,
    begin: float = 0.0,
    learning_rate: float = 1.0,
    tolerance: float = 1e-9,
) -> Fluctuation:
    """Train to t_s, move copies by Δf, and train all of them on to T = t_s + ΔT.

    Args:
        train_ntk: Θ between the training inputs, [N, N].
        cross_ntk: Θ between test and training inputs, [m, N].
        train_start: f_0 on the training inputs, [N, o].
        test_start: f_0 on the test inputs, [m, o].
        train_change: Δf on the training inputs, [draws, N, o].
        test_change: Δf on the test inputs, [draws, m, o].
        targets: [N, o].
        loss: The loss.
        duration: ΔT.
        begin: t_s.
        learning_rate: η.
        tolerance: Of the integration, see `linearised`.

    Example:
        >>> import torch
        >>> from tulip_ood.theory.kernels import WideNetwork, diagonal, kernels
        >>> from tulip_ood.theory.bound import bound
        >>> from tulip_ood.theory.losses import MSE
        >>> x, z, net = torch.eye(2), torch.tensor([[1.0, 0.5], [3.0, -3.0]]), WideNetwork(2)
        >>> ntk, cross = kernels(net, x).ntk, kernels(net, z, x).ntk
        >>> zero, change = torch.zeros(2, 1), [waves(s, alpha=0.1, draws=8) for s in (x, z)]
        >>> found = perturb_then_train(ntk, cross, zero, zero, *change, torch.ones(2, 1), MSE,
        ...                            duration=1.0)
        >>> right = bound(ntk, cross, diagonal(net, z).ntk, alpha=0.1, beta=found.beta,
        ...               lipschitz=MSE.lipschitz, duration=1.0)
        >>> bool((found.distance <= right.right_side).all())
        True
    """
    if train_change.ndim != 3 or test_change.ndim != 3:
        raise InputError(
            "expected changes [draws, N, o] and [draws, m, o], got shapes "
            f"{tuple(train_change.shape)} and {tuple(test_change.shape)}"
        )

    def train(first: Tensor, second: Tensor, time: float) -> Trained:
        return linearised(
            train_ntk,
            cross_ntk,
            first,
            second,
            targets,
            loss,
            time=time,
            learning_rate=learning_rate,
            tolerance=tolerance,
        )

    reached = train(train_start, test_start, begin)
    return Fluctuation(
        plain=train(reached.train, reached.test, duration),
        perturbed=train(reached.train + train_change, reached.test + test_change, duration),
        before=reached.test,
    )


def tightness(fluctuation: Fluctuation, bound: Bound) -> float:
    """How much of the bound is used: the largest ‖f_T(z) − f̂_T(z)‖ / right side of Eq. 5.

    1 would be a sharp bound, more than 1 a broken one (an assumption does not hold), and 0 one
    beyond every float.

    Example:
        >>> import torch
        >>> from tulip_ood.theory.bound import Bound
        >>> from tulip_ood.theory.losses import MSE
        >>> one = torch.ones(1, 1).double()
        >>> found = perturb_then_train(one, one, one, one, 0.1 * one[None], 0.1 * one[None],
        ...                            3 * one, MSE, duration=0.0)
        >>> round(tightness(found, Bound(-torch.inf, 0 * one[0], 0.1, found.beta, 1.0)), 4)
        0.3333
    """
    if float(fluctuation.distance.max()) == 0:
        return 0.0
    return float((fluctuation.distance.log() - bound.log_right_side).exp().max())
