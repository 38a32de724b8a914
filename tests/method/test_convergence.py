"""Prop. 4.1, the drift and Eq. 11 against exact Jacobians, in float64: the limits and the rates.

J(z) = ∂f(z; θ)/∂θ comes from `torch.func.jacrev`. Everything measured comes from the library's own
passes. Rates are slopes of log error against log ε or log M, with fixed seeds.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from tulip_ood.detectors.measured import measure
from tulip_ood.network.initial_mean import initial_mean
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.running import run_passes
from tulip_ood.numerics import envelope
from tulip_ood.numerics.tasks import make_task

EPSILONS = np.geomspace(1e-4, 3e-3, 6)
M_LARGE = 512


class Measurements:
    """The library's passes of one network at any ε, and the exact quantities beside them.

    Γ is 1, or differs between parameters (0 among its values) with `uneven`.
    """

    def __init__(self, small: Any, *, uneven: bool = False) -> None:
        self.x = small.x_new
        self.network = Network(small.model, make_task("classification"))
        names = list(self.network.parameters)
        factors = [0.5, 1.5, 0.0, 2.0] if uneven else [1.0]
        self.scales = {name: factors[k % len(factors)] for k, name in enumerate(names)}
        self.means = initial_mean(self.network.module, self.network.parameters)
        parameters = dict(small.model.named_parameters())

        def outputs(theta: Mapping[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(small.model, dict(theta), (self.x,))
            return result

        jacobian = jacrev(outputs)(parameters)
        n, o = outputs(parameters).shape
        # JΓ: what the noise and the drift see, [N, o, number of parameters].
        self.jacobian = torch.cat(
            [self.scales[name] * jacobian[name].reshape(n, o, -1) for name in names], dim=-1
        )
        self.kernel = self.jacobian @ self.jacobian.mT  # JΓ²Jᵀ, [N, o, o]
        self.trace = self.kernel.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        away = [(parameters[name] - self.means.of(name)).flatten() for name in names]
        self.drift = (self.jacobian @ torch.cat(away)).norm(dim=-1)

    def perturbation(self, epsilon: float, m: int, *, antithetic: bool, seed: int) -> Perturbation:
        settings = PassSettings(epsilon, 8.0, m, antithetic=antithetic, seed=seed)
        return Perturbation(self.network, self.scales, self.means, settings, hold=False)

    def passes(self, epsilon: float, m: int, *, antithetic: bool, seed: int = 0) -> Passes:
        made = self.perturbation(epsilon, m, antithetic=antithetic, seed=seed)
        return run_passes(made, self.x, batch_size=len(self.x))

    def linear_trace(self, m: int, *, antithetic: bool, seed: int = 0) -> Tensor:
        """(1/M) Σ ‖JΓv_i‖² of the same draws: Θ/ε² without what ε does to it."""
        made = self.perturbation(1.0, m, antithetic=antithetic, seed=seed)
        total = torch.zeros(len(self.x), dtype=torch.float64)
        for i in range(m):
            pair, _ = made.settings.sample(i)
            noise = made.unit_noise(pair)
            drawn = [noise[name].double().flatten() if name in noise else
                     torch.zeros(p.numel(), dtype=torch.float64)
                     for name, p in self.network.parameters.items()]  # fmt: skip
            total += (self.jacobian @ torch.cat(drawn)).square().sum(dim=-1) / m
        return total


@pytest.fixture(params=[False, True], ids=["Γ = 1", "Γ uneven"])
def measured(request: pytest.FixtureRequest, small: Any) -> Measurements:
    return measurements(small, request.param)


@cache
def measurements(small: Any, uneven: bool) -> Measurements:
    return Measurements(small, uneven=uneven)


MANY = [
    pytest.param((False, False), id="independent"),
    pytest.param((False, True), id="pairs"),
    pytest.param((True, True), id="pairs, Γ uneven"),
]


@pytest.fixture(params=MANY)
def many(request: pytest.FixtureRequest, small: Any) -> tuple[Measurements, Passes, int]:
    """The exact quantities, passes with many draws, and how many passes make one draw."""
    uneven, antithetic = request.param
    exact = measurements(small, uneven)
    return exact, many_passes(exact, antithetic), 2 if antithetic else 1


@cache
def many_passes(exact: Measurements, antithetic: bool) -> Passes:
    return exact.passes(1e-4, M_LARGE, antithetic=antithetic, seed=1)


def slope(x: Sequence[float], error: Sequence[float]) -> float:
    """The power of x with which an error goes, by least squares in logarithms."""
    return float(np.polyfit(np.log(x), np.log(error), 1)[0])


def relative(found: Tensor, exact: Tensor) -> float:
    """The mean relative error over inputs."""
    return float(((found - exact) / exact).abs().mean())


# ------------------------------------------------------------------------ Θ, Proposition 4.1


@pytest.mark.parametrize(("antithetic", "power"), [(False, 1.0), (True, 2.0)])
def test_trace_loses_its_bias_as_epsilon_or_its_square(
    measured: Measurements, antithetic: bool, power: float
) -> None:
    """Θ/ε² → (1/M) Σ ‖JΓv_i‖² of the same draws: as ε, and as ε² where v and −v come in pairs."""
    m = 8
    limit = measured.linear_trace(m, antithetic=antithetic)
    errors = []
    for epsilon in EPSILONS:
        passes = measured.passes(epsilon, m, antithetic=antithetic)
        trace = measure(passes, sqrt_outputs=False).trace
        errors.append(relative(trace / epsilon**2, limit))
    assert slope(EPSILONS, errors) == pytest.approx(power, abs=0.08)
    assert errors[0] < (1e-4 if antithetic else 1e-2)


def test_trace_loses_its_random_error_as_one_over_root_m(
    many: tuple[Measurements, Passes, int],
) -> None:
    """E(Θ_M/ε² − tr K)² = 2 tr K²/M, K = JΓ²Jᵀ; a pair counts as one draw.

    The slope is −½, and the size is the one that Gaussian noise must have.
    """
    exact, passes, per_draw = many
    each = (passes.noisy - passes.base).square().sum(dim=-1) / passes.settings.epsilon**2  # [M, N]
    variance = 2 * exact.kernel.square().sum(dim=(-2, -1)) / exact.trace.square()
    ms = (2, 4, 8, 16, 32)
    errors = []
    for m in ms:
        groups = each.unflatten(0, (-1, m)).mean(dim=1)  # Θ of many groups of M draws
        squares = ((groups - exact.trace) / exact.trace).square().mean(dim=0)
        errors.append(math.sqrt(float(squares.mean())))
    assert slope(ms, errors) == pytest.approx(-0.5, abs=0.07)
    expected = [math.sqrt(float(variance.mean()) * per_draw / m) for m in ms]
    np.testing.assert_allclose(errors[:4], expected[:4], rtol=0.2)


def test_trace_converges_to_the_exact_one(many: tuple[Measurements, Passes, int]) -> None:
    """Proposition 4.1 as it stands: ε small, M large, and every input within 4 errors of tr K."""
    exact, passes, per_draw = many
    trace = measure(passes, sqrt_outputs=False).trace / passes.settings.epsilon**2
    error = (2 * exact.kernel.square().sum(dim=(-2, -1)) * per_draw / M_LARGE).sqrt()
    assert float(((trace - exact.trace) / error).abs().max()) < 4
    assert relative(trace, exact.trace) < 0.1


# ---------------------------------------------------------------------------------- D, Eq. 9


def test_drift_converges_as_epsilon(measured: Measurements) -> None:
    """D/(εδ) → ‖JΓ(θ − θ_ts)‖, with an error that falls as ε; θ_ts is 1 for norms' scales."""
    errors = []
    for epsilon in EPSILONS:
        passes = measured.passes(epsilon, 1, antithetic=True)
        drift = measure(passes, sqrt_outputs=False).drift
        errors.append(relative(drift / (8.0 * epsilon), measured.drift))
    assert slope(EPSILONS, errors) == pytest.approx(1.0, abs=0.05)
    assert errors[0] < 0.02


def test_drift_of_algorithm_1_has_root_o(measured: Measurements) -> None:
    passes = measured.passes(1e-5, 1, antithetic=True)
    drift = measure(passes, sqrt_outputs=True).drift / (8.0 * 1e-5)
    assert relative(drift, math.sqrt(3) * measured.drift) < 2e-3


def test_the_initial_mean_matters(small: Any) -> None:
    """With θ_ts = 0 for the scales of normalisation layers the limit would be another one."""
    exact = measurements(small, False)
    theta = torch.cat([p.detach().flatten() for p in small.model.parameters()])
    from_zero = (exact.jacobian @ theta).norm(dim=-1)
    if small.name == "mlp":
        assert torch.equal(from_zero, exact.drift)
    else:
        assert relative(from_zero, exact.drift) > 0.05


# ---------------------------------------------------------------------------- samples, Eq. 11


def posterior(passes: Passes, trace_xx: float, lam: float, j: float) -> tuple[Tensor, Tensor]:
    """tr Var_i f̃_i and S, for inputs with S > 0."""
    measured = measure(passes, sqrt_outputs=False)
    bound = envelope.bound(measured.trace, measured.drift, trace_xx=trace_xx, lam=lam, j=j)
    samples = envelope.samples(passes.base, passes.noisy, envelope.stretch(bound, measured.trace))
    variance = samples.var(dim=0, correction=0).sum(dim=-1)
    active = bound > 0
    return variance[active], bound[active]


def constants(measured: Measurements, epsilon: float) -> tuple[float, float, float]:
    """Θ_XX, a λ at which most inputs are active, and a J, on the scale of this ε."""
    trace_xx = epsilon**2 * float(measured.trace.mean())
    lam = 0.5 * 2 * trace_xx / (8.0 * epsilon * float(measured.drift.mean()))
    return trace_xx, lam, 2.0


def test_variance_of_antithetic_samples_converges_to_the_bound(measured: Measurements) -> None:
    """Eq. 11: E_i f_i ≈ f up to ε², so tr Var_i f̃_i / S → 1 as ε²."""
    errors = []
    for epsilon in EPSILONS:
        passes = measured.passes(epsilon, 8, antithetic=True)
        variance, bound = posterior(passes, *constants(measured, epsilon))
        assert len(bound) >= 4
        errors.append(relative(variance, bound))
    assert slope(EPSILONS, errors) == pytest.approx(2.0, abs=0.05)
    assert errors[0] < 1e-4


def test_variance_of_independent_samples_converges_to_the_bound(small: Any) -> None:
    """Independent noise has a mean of its own: E tr Var_i f̃_i / S = 1 − 1/M, to the order of ε."""
    exact = measurements(small, False)
    passes = many_passes(exact, False)
    trace_xx, lam, j = constants(exact, passes.settings.epsilon)
    ms = (2, 4, 8, 16, 32)
    shortfalls = []
    for m in ms:
        ratios = []
        for first in range(0, M_LARGE, m):
            group = Passes(
                passes.base,
                passes.noisy[first : first + m],
                passes.drift,
                None,
                None,
                passes.settings.with_(n_samples=m),
            )
            variance, bound = posterior(group, trace_xx, lam, j)
            ratios.append(variance / bound)
        shortfalls.append(1 - float(torch.cat(ratios).mean()))
    assert slope(ms, shortfalls) == pytest.approx(-1.0, abs=0.1)
    np.testing.assert_allclose(shortfalls[:4], [1 / m for m in ms[:4]], rtol=0.1)
