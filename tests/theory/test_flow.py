"""The trained ensemble against neural-tangents, kernel regression and the integrated dynamics."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import integers, normal
from tulip_ood.theory.flow import ensemble, linearised, prior
from tulip_ood.theory.kernels import Kernels, WideNetwork, kernels
from tulip_ood.theory.losses import CROSS_ENTROPY, LOGISTIC, MSE, Loss

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())
NETWORK = WideNetwork(2, "relu", 1.5, 0.1)


def reference(name: str) -> Tensor:
    return torch.tensor(REFERENCE[name], dtype=torch.float64)


def three(network: WideNetwork, x: Tensor, z: Tensor) -> tuple[Kernels, Kernels, Kernels]:
    return kernels(network, x), kernels(network, z, x), kernels(network, z)


def problem(n: int = 6, m: int = 4, o: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    x, z = (normal((k, 3), seed=0, name=name).double() for k, name in ((n, "x"), (m, "z")))
    return x, z, normal((n, o), seed=0, name="y").double()


@pytest.mark.parametrize("row", REFERENCE["flow"], ids=lambda r: f"{r['activation']}-{r['depth']}")
def test_the_ensemble_is_that_of_neural_tangents(row: dict) -> None:
    network = WideNetwork(row["depth"], row["activation"], row["W_std"], row["b_std"])
    given = three(network, reference("train"), reference("test"))
    size = float(given[2].nngp.max())
    for at in row["times"]:
        time = math.inf if at["t"] is None else at["t"]
        found = ensemble(
            *given,
            reference("targets")[:, None],
            time=time,
            learning_rate=REFERENCE["learning_rate"],
        )
        mean = torch.tensor(at["mean"], dtype=torch.float64)
        covariance = torch.tensor(at["covariance"], dtype=torch.float64)
        assert float((found.mean[:, 0] - mean).abs().max()) < 1e-9 * size
        assert float((found.covariance - covariance).abs().max()) < 1e-9 * size


def test_the_limit_is_kernel_regression() -> None:
    x, z, y = problem(o=2)
    train, cross, test = three(NETWORK, x, z)
    found = ensemble(train, cross, test, y)
    torch.testing.assert_close(found.mean, cross.ntk @ torch.linalg.solve(train.ntk, y))
    late = ensemble(train, cross, test, y, time=1e9)
    torch.testing.assert_close(found.mean, late.mean)
    torch.testing.assert_close(found.covariance, late.covariance)


def test_at_the_start_it_is_the_prior_and_on_training_inputs_nothing_is_left() -> None:
    x, z, y = problem()
    train, cross, test = three(NETWORK, x, z)
    start = ensemble(train, cross, test, y, time=0.0)
    assert float(start.mean.abs().max()) == 0.0
    torch.testing.assert_close(start.covariance, test.nngp, rtol=0, atol=0)
    trained = ensemble(train, train, train, y)
    torch.testing.assert_close(trained.mean, y)
    assert float(trained.covariance.abs().max()) < 1e-10


def test_repeated_inputs_take_the_mean_of_their_targets() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([[1.0], [3.0], [5.0]], dtype=torch.float64)
    for time in (math.inf, 1e8):
        found = ensemble(*three(NETWORK, x, x), y, time=time)
        wanted = torch.tensor([[2.0], [2.0], [5.0]], dtype=torch.float64)
        torch.testing.assert_close(found.mean, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("time", [0.1, 3.0, 200.0])
def test_integrated_mse_equals_the_closed_form(time: float) -> None:
    x, z, y = problem(o=2)
    train, cross, test = three(NETWORK, x, z)
    n = len(x)
    whole = kernels(NETWORK, torch.cat([x, z])).nngp
    starts = prior(whole, draws=3, outputs=2, seed=1)
    end = linearised(
        train.ntk, cross.ntk, starts[:, :n], starts[:, n:], y, MSE, time=time, learning_rate=0.5
    )
    # Linear: each draw is the mean plus what is left of its start.
    for draw in range(3):
        pull = ensemble(train, cross, test, y - starts[draw, :n], time=time, learning_rate=0.5).mean
        wanted = starts[draw, n:] + pull
        assert float((end.test[draw] - wanted).abs().max()) < 1e-6
    assert end.time == time


def test_the_draws_trained_have_the_covariance_of_the_ensemble() -> None:
    x, z, y = problem(n=4, m=2)
    train, cross, test = three(NETWORK, x, z)
    starts = prior(kernels(NETWORK, torch.cat([x, z])).nngp, draws=4000)
    end = linearised(
        train.ntk, cross.ntk, starts[:, :4], starts[:, 4:], y, MSE, time=5.0, tolerance=1e-6
    )
    wanted = ensemble(train, cross, test, y, time=5.0)
    found = end.test[..., 0]
    size = float(wanted.covariance.max())
    assert float((found.T.cov() - wanted.covariance).abs().max()) < 0.08 * size
    assert float((found.mean(dim=0) - wanted.mean[:, 0]).abs().max()) < 0.06 * math.sqrt(size)


def labels(loss: Loss, n: int) -> Tensor:
    o = 1 if loss is LOGISTIC else 3
    drawn = integers((n,), max(o, 2), seed=3, name="labels")
    return drawn[:, None].double() if o == 1 else torch.eye(o, dtype=torch.float64)[drawn]


@pytest.mark.parametrize("loss", [LOGISTIC, CROSS_ENTROPY], ids=lambda loss: loss.name)
def test_other_losses_follow_small_euler_steps(loss: Loss) -> None:
    x, z, _ = problem()
    y = labels(loss, len(x))
    train, cross, _ = three(NETWORK, x, z)
    f, g = torch.zeros_like(y), torch.zeros((len(z), y.shape[1]), dtype=torch.float64)
    end = linearised(train.ntk, cross.ntk, f, g, y, loss, time=2.0)
    errors = []
    for count in (4000, 8000):
        a, b = f, g
        for _ in range(count):
            slope = loss.gradient(a, y) / len(x)
            a, b = a - 2.0 / count * train.ntk @ slope, b - 2.0 / count * cross.ntk @ slope
        errors.append(float(torch.cat([a - end.train, b - end.test]).abs().max()))
    assert errors[1] < 2e-3
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.01)  # Euler's error, not ours


@pytest.mark.parametrize("loss", [MSE, LOGISTIC, CROSS_ENTROPY], ids=lambda loss: loss.name)
def test_the_gradient_and_its_constant_are_those_of_the_loss(loss: Loss) -> None:
    y = labels(loss, 40)
    f = (normal(tuple(y.shape), seed=0, name="f").double() * 3).requires_grad_()
    value = {
        "mse": lambda: (f - y).square().sum() / 2,
        "logistic": lambda: torch.nn.functional.binary_cross_entropy_with_logits(
            f, y, reduction="sum"
        ),
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(f, y, reduction="sum"),
    }[loss.name]()
    (expected,) = torch.autograd.grad(value, f)
    torch.testing.assert_close(loss.gradient(f.detach(), y), expected)
    other = f.detach() + 0.1 * normal(tuple(y.shape), seed=1, name="f").double()
    change = (loss.gradient(other, y) - loss.gradient(f.detach(), y)).norm(dim=1)
    assert bool((change <= loss.lipschitz * (other - f.detach()).norm(dim=1) + 1e-12).all())


def test_training_to_a_residual_stops_there() -> None:
    x, z, _ = problem()
    y = labels(LOGISTIC, len(x))
    train, cross, _ = three(NETWORK, x, z)
    zero = torch.zeros(len(x), 1), torch.zeros(len(z), 1)
    end = linearised(train.ntk, cross.ntk, *zero, y, LOGISTIC, residual=0.05)
    assert 0.02 < end.residual <= 0.05
    assert bool(((end.train > 0) == (y > 0.5)).all())
    # Outputs moved by −E_x[Θ(·, x) pull(x)].
    torch.testing.assert_close(end.test, -cross.ntk @ end.pull / len(x))


def test_what_cannot_be_is_refused() -> None:
    x, z, y = problem()
    train, cross, test = three(NETWORK, x, z)
    zero = torch.zeros(6, 1), torch.zeros(4, 1)
    with pytest.raises(InputError, match="finite time or a residual"):
        linearised(train.ntk, cross.ntk, *zero, y, MSE)
    with pytest.raises(InputError, match=r"test_start: expected shape \(4, 1\)"):
        linearised(train.ntk, cross.ntk, zero[0], zero[0], y, MSE, time=1.0)
    with pytest.raises(InputError, match="no end after 10 steps"):
        linearised(train.ntk, cross.ntk, *zero, y, MSE, time=1e3, max_steps=10)
    with pytest.raises(InputError, match="between 0 and 1"):
        linearised(train.ntk, cross.ntk, *zero, y, LOGISTIC, time=1.0)
    with pytest.raises(InputError, match="time must not be negative"):
        ensemble(train, cross, test, y, time=-1.0)
    with pytest.raises(InputError, match=r"targets \[6, o\]"):
        ensemble(train, cross, test, y[:3])
