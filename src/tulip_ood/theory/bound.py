"""Theorem 3.1: how far a perturbation before the end of training can move the trained network.

A network f trains by Eq. 3; at t_s = T − ΔT a copy f̂ is moved by Δf and trains on alike (Eq. 4).
At a test input z, Eq. 5:

    ‖f_T(z) − f̂_T(z)‖ ≤ inf_{x∈X} C ‖∇f(z) − ∇f(x)‖_F + 2α + β

    C = α Θ̄_X^{1/2} / λ_max · (exp(η L λ_max ΔT) − 1)

under these assumptions:

    A1 (boundedness)   f, ∇f, ℓ and ℓ' stay bounded for t ∈ [0, T], uniformly in x.
    A2 (smoothness)    ‖ℓ'(a; y) − ℓ'(b; y)‖ ≤ L ‖a − b‖ at every training input.
    A3 (perturbation)  ‖Δf(x)‖ ≤ α for every x, not only those of the training set.
    A4 (convergence)   ‖f_T(x) − f̂_T(x)‖ ≤ β at every training input x.

Eq. 6 follows if also

    A5 (closeness)     inf_x ‖∇f(z) − ∇f(x)‖_F² ≤ Tr(Θ(z,z) + E_x Θ(x,x) − 2 E_x|Θ(z,x)|).

The paper prints C with η before the fraction and none in the exponent; its own proof, with the η of
Eq. 3 kept in the step before Grönwall's inequality, gives the C above (the same at η = 1).

Kernels here are scalar: Θ(x, x') = k(x, x') · I_o, as at infinite width; `outputs` is o.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = [
    "Bound",
    "Closeness",
    "bound",
    "closeness",
    "gradient_distance",
    "lambda_max",
    "practical",
]


def lambda_max(train_ntk: Tensor, kind: str = "paper") -> float:
    """λ_max of the Gram matrix G_ij = ‖Θ(x_i, x_j)‖ of the training set.

    Args:
        train_ntk: k between the N training inputs, [N, N].
        kind: "paper" for ‖G‖/√N as the theorem states it, ‖·‖ the largest singular value;
            "frobenius" for ‖G‖_F/N = E_{x,x'}[‖Θ(x, x')‖²]^{1/2}, which is what the proof uses and
            never larger: the theorem holds with it, and C is smaller.

    Example:
        >>> import torch
        >>> [round(lambda_max(torch.eye(4), kind), 6) for kind in ("paper", "frobenius")]
        [0.5, 0.5]
        >>> [round(lambda_max(torch.ones(4, 4), kind), 6) for kind in ("paper", "frobenius")]
        [2.0, 1.0]
    """
    n = len(train_ntk)
    gram = train_ntk.to(torch.float64).abs()
    if kind == "paper":
        # G is symmetric and not negative: its largest singular value is its largest eigenvalue.
        return float(torch.linalg.eigvalsh(gram)[-1]) / math.sqrt(n)
    if kind == "frobenius":
        return float(gram.norm()) / n
    raise InputError(f"unknown kind of λ_max {kind!r}: use 'paper' or 'frobenius'")


def gradient_distance(
    train_ntk: Tensor, cross_ntk: Tensor, test_diagonal: Tensor, *, outputs: int = 1
) -> Tensor:
    """inf_{x∈X} ‖∇f(z) − ∇f(x)‖_F for every test input z, [m].

    Through the kernel: ‖∇f(z) − ∇f(x)‖_F² = Tr(Θ(z,z) + Θ(x,x) − 2 Θ(z,x)).

    Args:
        train_ntk: k between the training inputs, [N, N].
        cross_ntk: k between test and training inputs, [m, N].
        test_diagonal: k(z, z), [m].
        outputs: o.

    Example:
        >>> import torch
        >>> gradient_distance(torch.eye(2), torch.tensor([[1.0, 0.0]]), torch.tensor([5.0]))
        tensor([2.], dtype=torch.float64)
    """
    own, between = train_ntk.diagonal().to(torch.float64), cross_ntk.to(torch.float64)
    squared = test_diagonal.to(torch.float64)[:, None] + own - 2 * between
    return (outputs * squared.amin(dim=1).clamp_min(0.0)).sqrt()


@dataclass(frozen=True)
class Bound:
    """Eq. 5 for some test inputs; logarithms are kept, since C overflows soon.

    Attributes:
        log_C: The natural logarithm of C (−inf if C is 0).
        distance: inf_x ‖∇f(z) − ∇f(x)‖_F, [m].
        alpha: α of A3.
        beta: β of A4.
        lambda_max: The λ_max that C was made with.

    Example:
        >>> import torch
        >>> far = Bound(log_C=2000.0, distance=torch.ones(1).double(), alpha=1.0, beta=0.5,
        ...             lambda_max=1.0)
        >>> far.C, round(far.log10_C, 3), far.right_side, far.log10_right_side
        (inf, 868.589, tensor([inf], dtype=torch.float64), tensor([868.5890], dtype=torch.float64))
    """

    log_C: float  # noqa: N815
    distance: Tensor
    alpha: float
    beta: float
    lambda_max: float

    @property
    def C(self) -> float:  # noqa: N802
        """C itself; inf where it overflows."""
        return math.exp(self.log_C) if self.log_C < 709 else math.inf

    @property
    def log10_C(self) -> float:  # noqa: N802
        """log₁₀ C."""
        return self.log_C / math.log(10)

    @property
    def offset(self) -> float:
        """2α + β, the part of Eq. 5 that does not depend on z."""
        return 2 * self.alpha + self.beta

    @property
    def log_right_side(self) -> Tensor:
        """The natural logarithm of the right side of Eq. 5, [m]."""
        offset = torch.tensor(self.offset, dtype=torch.float64).log()
        return torch.logaddexp(self.log_C + self.distance.log(), offset)

    @property
    def log10_right_side(self) -> Tensor:
        """log₁₀ of the right side of Eq. 5, [m]."""
        return self.log_right_side / math.log(10)

    @property
    def right_side(self) -> Tensor:
        """The right side of Eq. 5, [m]; inf where it overflows."""
        return self.log_right_side.exp()


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _log_C(alpha: float, mean_gradient: float, largest: float, rate: float, time: float) -> float:  # noqa: N802
    """log(α Θ̄^{1/2} / λ · (e^{rate λ time} − 1)), rate = η L; nothing overflows."""
    if 0 in (rate, largest, time):
        return -math.inf  # no time, no motion (λ_max = 0 only where every gradient is 0)
    growth = rate * largest * time
    if growth > 1e-16:
        powers = growth + math.log(-math.expm1(-growth))
    else:  # the product may be too small for a float
        powers = math.log(rate) + math.log(largest) + math.log(time)
    return _log(alpha) + _log(mean_gradient) - math.log(largest) + powers


def bound(
    train_ntk: Tensor,
    cross_ntk: Tensor,
    test_diagonal: Tensor,
    *,
    alpha: float,
    beta: float,
    lipschitz: float,
    duration: float,
    learning_rate: float = 1.0,
    outputs: int = 1,
    kind: str = "paper",
) -> Bound:
    """The right side of Eq. 5 at test inputs, under A1–A4 (see the module).

    Θ̄_X^{1/2} = E_x[‖∇f(x)‖²]^{1/2} has the matrix 2-norm in the paper, so it is √(mean k(x, x))
    for any number of outputs; the distance to X has the Frobenius norm and grows with √o.

    Args:
        train_ntk: k between the training inputs, [N, N].
        cross_ntk: k between test and training inputs, [m, N].
        test_diagonal: k(z, z), [m].
        alpha: α ≥ sup_x ‖Δf(x)‖ (A3).
        beta: β ≥ max over X of ‖f_T − f̂_T‖ (A4), from a simulation or assumed.
        lipschitz: L of A2, `Loss.lipschitz`.
        duration: ΔT = T − t_s.
        learning_rate: η.
        outputs: o.
        kind: Which λ_max, see `lambda_max`.

    Example:
        >>> import torch
        >>> from tulip_ood.theory.kernels import WideNetwork, diagonal, kernels
        >>> x, z, net = torch.eye(2), torch.tensor([[1.0, 0.0], [9.0, 9.0]]), WideNetwork(2)
        >>> found = bound(kernels(net, x).ntk, kernels(net, z, x).ntk, diagonal(net, z).ntk,
        ...               alpha=0.1, beta=0.0, lipschitz=1.0, duration=1.0)
        >>> round(found.log10_C, 3), found.right_side.round(decimals=3)
        (-0.079, tensor([ 0.2000, 17.7620], dtype=torch.float64))
    """
    for name, value in {
        "alpha": alpha,
        "beta": beta,
        "lipschitz": lipschitz,
        "duration": duration,
        "learning_rate": learning_rate,
    }.items():
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be finite and not negative, got {value}")
    largest = lambda_max(train_ntk, kind)
    mean_gradient = math.sqrt(float(train_ntk.to(torch.float64).diagonal().mean()))
    return Bound(
        log_C=_log_C(alpha, mean_gradient, largest, learning_rate * lipschitz, duration),
        distance=gradient_distance(train_ntk, cross_ntk, test_diagonal, outputs=outputs),
        alpha=alpha,
        beta=beta,
        lambda_max=largest,
    )


@dataclass(frozen=True)
class Closeness:
    """The two sides of A5 for every test input.

    Attributes:
        nearest: inf_x ‖∇f(z) − ∇f(x)‖_F², [m].
        allowed: Tr(Θ(z,z) + E_x Θ(x,x) − 2 E_x|Θ(z,x)|), [m].

    Example:
        >>> import torch
        >>> Closeness(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])).holds
        tensor([ True, False])
    """

    nearest: Tensor
    allowed: Tensor

    @property
    def holds(self) -> Tensor:
        """Where A5 is true, [m]."""
        return self.nearest <= self.allowed


def closeness(
    train_ntk: Tensor, cross_ntk: Tensor, test_diagonal: Tensor, *, outputs: int = 1
) -> Closeness:
    """Check A5. It is always true where k(z, x) ≥ 0 for all x: a minimum is at most a mean.

    Args:
        train_ntk: k between the training inputs, [N, N].
        cross_ntk: k between test and training inputs, [m, N].
        test_diagonal: k(z, z), [m].
        outputs: o.

    Example:
        >>> import torch
        >>> closeness(torch.eye(2), torch.tensor([[0.5, 0.1]]), torch.tensor([1.0])).holds
        tensor([True])
    """
    nearest = gradient_distance(train_ntk, cross_ntk, test_diagonal, outputs=outputs).square()
    mean = train_ntk.diagonal().to(torch.float64).mean()
    similar = cross_ntk.to(torch.float64).abs().mean(dim=1)
    return Closeness(nearest, outputs * (test_diagonal.to(torch.float64) + mean - 2 * similar))


def practical(
    train_ntk: Tensor, test_diagonal: Tensor, drift: Tensor, *, J: float, K: float, outputs: int = 1
) -> Tensor:
    """The right side of Eq. 6, [m]: J [Tr(Θ(z,z) + E_x Θ(x,x)) − 2K ‖∇f(z)(θ_T − θ_ts)‖]^{1/2}.

    Eq. 6 holds up to an addend that does not depend on z. Under A1–A5 its proof gives J = C, the
    addend 2α + β, and any K ≤ 1 / sup_x ‖η ∫ ℓ'(f_t(x)) dt‖ over [t_s, T] (`Fluctuation.K`). With a
    larger K the bracket can fall below 0; as in Alg. 1 it is then 0.

    Args:
        train_ntk: k between the training inputs, [N, N].
        test_diagonal: k(z, z), [m].
        drift: ‖∇f(z)(θ_T − θ_ts)‖ = ‖f_T(z) − f_ts(z)‖ of the linearised network, [m].
        J: The constant before the root.
        K: The constant before the drift.
        outputs: o.

    Example:
        >>> import torch
        >>> practical(torch.eye(2), torch.tensor([3.0, 3.0]), torch.tensor([0.0, 1.5]), J=2.0, K=1.0)
        tensor([4., 2.], dtype=torch.float64)
    """  # noqa: E501
    mean = train_ntk.diagonal().to(torch.float64).mean()
    trace = outputs * (test_diagonal.to(torch.float64) + mean)
    return J * (trace - 2 * K * drift).clamp_min(0.0).sqrt()
