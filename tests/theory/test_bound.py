"""Theorem 3.1 against simulated training: it is never exceeded while A1–A4 hold."""

import math

import pytest
import torch
from hypothesis import example, given, note, settings, target
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import integers, normal
from tulip_ood.theory.bound import (
    Bound,
    bound,
    closeness,
    gradient_distance,
    lambda_max,
    practical,
)
from tulip_ood.theory.flow import prior
from tulip_ood.theory.kernels import WideNetwork, diagonal, kernels
from tulip_ood.theory.losses import CROSS_ENTROPY, LOGISTIC, MSE, Loss
from tulip_ood.theory.simulate import perturb_then_train, tightness, waves

SIMULATED = settings(deadline=None, max_examples=60)


def targets_of(loss: Loss, n: int, seed: int) -> Tensor:
    if loss is MSE:
        return normal((n, 2), seed=seed, name="y").double()
    labels = integers((n,), 2 if loss is LOGISTIC else 3, seed=seed, name="y")
    if loss is LOGISTIC:
        return labels[:, None].double()
    return torch.eye(3, dtype=torch.float64)[labels]


class Problem:
    """A random network, training set, test set and perturbation; everything the theorem needs."""

    def __init__(
        self,
        network: WideNetwork,
        loss: Loss = MSE,
        *,
        seed: int = 0,
        n: int = 5,
        alpha: float = 0.2,
        learning_rate: float = 1.0,
        begin: float = 0.0,
        duration: float = 1.0,
        frequency: float = 1.0,
    ) -> None:
        x = normal((n, 2), seed=seed, name="x").double()
        # A training input, some near and some so far that the first term of Eq. 5 decides.
        far = torch.tensor([[1.0], [2.0], [30.0], [1000.0]], dtype=torch.float64)
        z = torch.cat([x[:1], far * normal((4, 2), seed=seed, name="z").double()])
        self.loss, self.alpha, self.duration, self.rate = loss, alpha, duration, learning_rate
        self.targets = targets_of(loss, n, seed)
        self.outputs = self.targets.shape[1]
        self.ntk, self.cross = kernels(network, x).ntk, kernels(network, z, x).ntk
        self.own = diagonal(network, z).ntk
        nngp = kernels(network, torch.cat([x, z])).nngp
        start = prior(nngp, draws=1, outputs=self.outputs, seed=seed)[0]
        self.change = [
            waves(s, alpha=alpha, draws=3, outputs=self.outputs, frequency=frequency, seed=seed)
            for s in (x, z)
        ]
        self.found = perturb_then_train(
            self.ntk,
            self.cross,
            start[:n],
            start[n:],
            *self.change,
            self.targets,
            loss,
            begin=begin,
            duration=duration,
            learning_rate=learning_rate,
        )

    def bound(self, kind: str = "paper") -> Bound:
        return bound(
            self.ntk,
            self.cross,
            self.own,
            alpha=self.alpha,
            beta=self.found.beta,
            lipschitz=self.loss.lipschitz,
            duration=self.duration,
            learning_rate=self.rate,
            outputs=self.outputs,
            kind=kind,
        )


@SIMULATED
@given(
    seed=st.integers(0, 10**6),
    activation=st.sampled_from(["relu", "erf"]),
    depth=st.integers(1, 3),
    W_std=st.floats(0.3, 2.0),
    b_std=st.floats(0.0, 1.0),
    loss=st.sampled_from([MSE, LOGISTIC, CROSS_ENTROPY]),
    n=st.integers(1, 8),
    alpha=st.floats(1e-3, 2.0),
    learning_rate=st.floats(0.05, 3.0),
    begin=st.sampled_from([0.0, 1.0]),
    duration=st.floats(0.0, 5.0),
    frequency=st.floats(0.0, 3.0),
)
@example(
    seed=0,
    activation="relu",
    depth=1,
    W_std=1.5,
    b_std=0.0,
    loss=MSE,
    n=2,
    alpha=1.0,
    learning_rate=1.0,
    begin=0.0,
    duration=5e-324,
    frequency=0.0,
)
def test_the_distance_never_exceeds_the_bound(
    seed: int, activation: str, depth: int, W_std: float, b_std: float, loss: Loss, **rest: float
) -> None:
    problem = Problem(WideNetwork(depth, activation, W_std, b_std), loss, seed=seed, **rest)
    paper, proof = problem.bound("paper"), problem.bound("frobenius")
    assert proof.lambda_max <= paper.lambda_max * (1 + 1e-12)
    assert proof.log_C <= paper.log_C + 1e-9
    used = tightness(problem.found, proof)
    note(f"{used:.3g} of the bound with ‖G‖_F/N, {tightness(problem.found, paper):.3g} as stated")
    target(used)  # hypothesis looks for the worst case
    assert 0 < tightness(problem.found, paper) <= used * (1 + 1e-9)
    assert used <= 1


@SIMULATED
@given(
    seed=st.integers(0, 10**6),
    activation=st.sampled_from(["relu", "erf"]),
    loss=st.sampled_from([MSE, LOGISTIC, CROSS_ENTROPY]),
    duration=st.floats(0.01, 5.0),
    b_std=st.floats(0.0, 1.0),
)
def test_equation_6_is_above_equation_5_where_a5_holds(
    seed: int, activation: str, loss: Loss, duration: float, b_std: float
) -> None:
    problem = Problem(WideNetwork(2, activation, 1.4, b_std), loss, seed=seed, duration=duration)
    found, five = problem.found, problem.bound()
    close = closeness(problem.ntk, problem.cross, problem.own, outputs=problem.outputs)
    positive = (problem.cross >= 0).all(dim=1)
    assert bool(close.holds[positive].all())
    six = practical(
        problem.ntk, problem.own, found.drift, J=five.C, K=found.K, outputs=problem.outputs
    )
    above = six + five.offset
    assert bool((above >= five.right_side * (1 - 1e-9))[close.holds].all())
    assert bool((found.distance <= above)[:, close.holds].all())


def one_input(loss: Loss, rate: float, duration: float, alpha: float = 1e-4) -> float:
    """The tightness for one training input and a test input far out in its direction.

    There k(z, x) = s k(x, x) and ‖∇f(z) − ∇f(x)‖ = (s − 1) ‖∇f(x)‖: no inequality of the proof but
    Grönwall's loses anything.
    """
    network, x = WideNetwork(1), torch.tensor([[1.0]], dtype=torch.float64)
    z = 1e9 * x
    ntk, cross, own = kernels(network, x).ntk, kernels(network, z, x).ntk, diagonal(network, z).ntk
    zero, change = torch.zeros(1, 1), torch.full((1, 1, 1), alpha)
    found = perturb_then_train(
        ntk,
        cross,
        zero,
        zero,
        change,
        change,
        torch.full((1, 1), 0.5),
        loss,
        duration=duration,
        learning_rate=rate,
        tolerance=1e-14,
    )
    given = {"alpha": alpha, "beta": found.beta, "lipschitz": loss.lipschitz}
    right = bound(ntk, cross, own, duration=duration, learning_rate=rate, **given)
    return tightness(found, right)


@pytest.mark.parametrize("loss", [MSE, LOGISTIC], ids=lambda loss: loss.name)
@pytest.mark.parametrize(("rate", "duration"), [(1.0, 1e-3), (3.0, 1e-3), (0.5, 0.4), (2.0, 0.4)])
def test_the_bound_is_sharp_for_short_times(loss: Loss, rate: float, duration: float) -> None:
    # The difference shrinks by e^{−ηLkt} where Grönwall allows e^{+ηLkt}; k(x, x) = 4.
    wanted = math.exp(-rate * loss.lipschitz * 4.0 * duration)
    assert one_input(loss, rate, duration) == pytest.approx(wanted, rel=1e-4)


def test_a_perturbation_larger_than_it_says_breaks_the_bound() -> None:
    one = torch.ones(1, 1).double()
    found = perturb_then_train(one, one, one, one, 0 * one[None], one[None], one, MSE, duration=0.0)
    given = {"beta": found.beta, "lipschitz": 1.0, "duration": 0.0}
    assert tightness(found, bound(one, one, one[0], alpha=1.0, **given)) == 0.5
    assert tightness(found, bound(one, one, one[0], alpha=0.25, **given)) == 2.0  # A3 is false


def test_simulated_mse_follows_the_closed_form() -> None:
    problem = Problem(WideNetwork(2, "relu", 1.4, 0.2), duration=3.0, learning_rate=0.5, begin=0.7)
    values, vectors = torch.linalg.eigh(problem.ntk)
    gain = (1 - (-0.5 * 3.0 * values / len(values)).exp()) / values
    train, test = problem.change
    # The difference of two networks trains towards 0 from Δf, whatever the targets.
    left = test - problem.cross @ (vectors * gain) @ vectors.T @ train
    torch.testing.assert_close(problem.found.distance, left.norm(dim=-1), atol=1e-6, rtol=0)


def test_c_is_the_formula_and_stays_finite_in_logarithms() -> None:
    ntk = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    cross, own = torch.tensor([[0.3, 0.1]]).double(), torch.tensor([1.5]).double()

    def made(duration: float, kind: str = "paper") -> Bound:
        return bound(
            ntk,
            cross,
            own,
            alpha=0.3,
            beta=0.1,
            lipschitz=0.25,
            duration=duration,
            learning_rate=2.0,
            outputs=3,
            kind=kind,
        )

    largest = (1.5 + math.sqrt(0.5)) / math.sqrt(2)  # G has the eigenvalues 1.5 ± √½
    assert lambda_max(ntk) == pytest.approx(largest, rel=1e-12)
    assert lambda_max(ntk, "frobenius") == pytest.approx(math.sqrt(5.5) / 2, rel=1e-12)
    for duration in (1e-30, 1e-12, 1.0, 30.0):
        C = 0.3 * math.sqrt(1.5) / largest * math.expm1(2.0 * 0.25 * largest * duration)
        found = made(duration)
        assert pytest.approx(C, rel=1e-12) == found.C
        distance = math.sqrt(3 * min(1.5 + 2 - 0.6, 1.5 + 1 - 0.2))
        right = C * distance + 0.6 + 0.1
        assert float(found.right_side) == pytest.approx(right, rel=1e-7)
    late = made(1e6)
    assert math.inf == late.C
    assert late.log10_C == pytest.approx(
        (2 * 0.25 * largest * 1e6 + math.log(0.3 * math.sqrt(1.5) / largest)) / math.log(10)
    )
    assert bool(late.log10_right_side.isfinite().all())
    assert made(0.0).C == 0.0
    assert float(made(0.0).right_side) == pytest.approx(0.7)


def test_a_bound_beyond_every_float_still_gives_a_tightness() -> None:
    problem = Problem(WideNetwork(1), duration=1.0)
    problem.duration = 1e6
    # One test input is a training input: there the bound stays 2α + β.
    used = tightness(problem.found, problem.bound())
    assert 0 < used < 0.5


def test_the_gradient_distance_is_that_of_gradients() -> None:
    train, test = (normal((k, 7), seed=0, name=f"{k}").double() for k in (4, 3))
    own = (test * test).sum(dim=1)
    found = gradient_distance(train @ train.T, test @ train.T, own)
    torch.testing.assert_close(found, torch.cdist(test, train).amin(dim=1))
    three = gradient_distance(train @ train.T, test @ train.T, own, outputs=3)
    torch.testing.assert_close(three, math.sqrt(3) * found)


def test_waves_are_one_bounded_function() -> None:
    x = 100 * normal((400, 3), seed=0, name="x").double()
    both = waves(x, alpha=0.5, draws=6, outputs=2, seed=4)
    assert float(both.norm(dim=-1).max()) <= 0.5
    assert float(both.norm(dim=-1).amax(dim=1).min()) > 0.15
    torch.testing.assert_close(waves(x[7:9], alpha=0.5, draws=6, outputs=2, seed=4), both[:, 7:9])


def test_what_cannot_be_is_refused() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(InputError, match="'paper' or 'frobenius'"):
        lambda_max(one, "spectral")
    with pytest.raises(InputError, match="alpha must be finite and not negative, got -1"):
        bound(one, one, one[0], alpha=-1, beta=0, lipschitz=1, duration=1)
    with pytest.raises(InputError, match=r"\[draws, N, o\]"):
        perturb_then_train(one, one, one, one, one, one, one, MSE, duration=1.0)
