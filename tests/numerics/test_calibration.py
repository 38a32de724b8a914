"""Θ_XX, the balanced λ, J* and σ²: against brute force, scipy's optimisers and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from tulip_ood.numerics import blocks, envelope
from tulip_ood.numerics.calibration import (
    _best_noise_variance,
    balanced_lambda,
    calibrate_j,
    mean_log_likelihood,
    mean_trace,
)
from tulip_ood.numerics.tasks import Binary, Classification, Dense, Multilabel, Regression

PROPERTY = settings(deadline=None, max_examples=30)


def classes(
    seed: int, *, confidence: float, n: int = 150, o: int = 4, m: int = 6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Base, noisy, γ at J = 1, labels: `confidence` 1 is calibrated, above it over-confident."""
    generator = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(n, o, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(-1), 1, generator=generator).squeeze(1)
    base = confidence * true
    noise = torch.randn(m // 2, n, o, generator=generator, dtype=torch.float64)
    stretch = torch.rand(n, generator=generator, dtype=torch.float64)
    return base, torch.cat([base + noise, base - noise]), stretch, labels


def plain_likelihood(
    base: Tensor, noisy: Tensor, stretch: Tensor, labels: Tensor, j: float
) -> float:
    """Mean of log mean_i softmax(f + Jγ(f_i − f))_y, straight from the paper."""
    samples = base + j * stretch[:, None] * (noisy - base)
    p = samples.softmax(dim=-1).mean(dim=0)
    return float(p[torch.arange(len(labels)), labels].log().mean())


FINE = [0.0, *np.geomspace(0.001, 100, 3001)]


# ------------------------------------------------------------------------------ Θ_XX and λ


@PROPERTY
@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=20))
def test_balanced_lambda_makes_the_bound_average_to_zero(inputs: list[tuple[float, float]]) -> None:
    """λ = 2 Θ_XX / mean D: mean S = 0 on the data it was found on, whatever the units."""
    trace, drift = torch.tensor(inputs, dtype=torch.float64).T
    trace_xx = mean_trace(trace)
    lam = balanced_lambda(trace_xx, float(drift.mean()))
    bound = envelope.bound(trace, drift, trace_xx=trace_xx, lam=lam)
    assert float(bound.mean()) == pytest.approx(0.0, abs=1e-9 * trace_xx)
    for k in (1e-3, 1e3):  # logits × k: the bound × k²
        scaled = balanced_lambda(mean_trace(k**2 * trace), float((k * drift).mean()))
        assert scaled == pytest.approx(k * lam)


def test_balanced_lambda_without_drift_is_zero() -> None:
    assert balanced_lambda(3.0, 0.0) == 0.0


# --------------------------------------------------------------------------------------- J*


@pytest.mark.parametrize("seed", range(6))
def test_j_star_is_the_best_of_a_fine_grid(seed: int) -> None:
    problem = classes(seed, confidence=3.0)
    base, noisy, stretch, labels = problem
    found = calibrate_j(Classification(), base, noisy, stretch, labels)
    values = [plain_likelihood(*problem, j) for j in FINE]
    best = int(np.argmax(values))
    assert found.j > 0.5
    assert FINE[best - 1] <= found.j <= FINE[best + 1]
    assert found.log_likelihood >= values[best] - 1e-10
    assert found.log_likelihood == pytest.approx(plain_likelihood(*problem, found.j), abs=1e-12)
    assert found.log_likelihood_at_0 == pytest.approx(values[0], abs=1e-12)


@pytest.mark.parametrize("seed", [*range(8), 41, 96, 102])  # the last: hills between grid points
def test_j_star_is_global_where_stretches_differ_by_decades(seed: int) -> None:
    """40 inputs, stretches from 0.001 to 10: the likelihood has several hills, the highest wins."""
    base, noisy, stretch, labels = classes(seed, confidence=3.0, n=40)
    stretch = 10 ** (4 * stretch - 3)
    found = calibrate_j(Classification(), base, noisy, stretch, labels)
    grid = [0.0, *np.geomspace(0.01, 100, 400)]
    best = max(plain_likelihood(base, noisy, stretch, labels, j) for j in grid)
    assert found.log_likelihood >= best - 1e-6


@PROPERTY
@given(st.integers(0, 2**31), st.floats(0.2, 6))
def test_j_star_is_never_worse_than_the_network_alone(seed: int, confidence: float) -> None:
    base, noisy, stretch, labels = classes(seed, confidence=confidence, n=20)
    found = calibrate_j(Classification(), base, noisy, stretch, labels)
    assert found.log_likelihood >= found.log_likelihood_at_0
    assert (found.j == 0) == (found.log_likelihood == found.log_likelihood_at_0)


def test_an_under_confident_network_gets_j_zero() -> None:
    base, noisy, stretch, labels = classes(0, confidence=0.3)
    found = calibrate_j(Classification(), base, noisy, stretch, labels)
    assert found.j == 0.0
    assert found.log_likelihood == found.log_likelihood_at_0


def test_j_is_zero_where_no_input_is_stretched() -> None:
    """All S ≤ 0, as in the paper's literal setting: nothing can be gained, and it is said by 0."""
    base, noisy, _, labels = classes(0, confidence=3.0)
    assert calibrate_j(Classification(), base, noisy, torch.zeros(len(base)), labels).j == 0.0


def test_a_gain_below_a_millionth_of_a_nat_is_no_gain() -> None:
    base, noisy, stretch, labels = classes(0, confidence=3.0)
    tiny = torch.zeros_like(stretch)
    tiny[0] = 1e-7
    assert calibrate_j(Classification(), base, noisy, tiny, labels).j == 0.0


@pytest.mark.parametrize("factor", [1e-4, 0.01, 0.3, 20.0, 1e4])
def test_j_star_is_found_on_any_scale(factor: float) -> None:
    """Stretches × k: J* / k, for ε that are far too small or too large."""
    base, noisy, stretch, labels = classes(0, confidence=3.0)
    once = calibrate_j(Classification(), base, noisy, stretch, labels)
    found = calibrate_j(Classification(), base, noisy, factor * stretch, labels)
    assert found.j * factor == pytest.approx(once.j, rel=1e-3)
    assert found.log_likelihood == pytest.approx(once.log_likelihood, abs=1e-7)


def test_a_plateau_is_entered_and_not_followed() -> None:
    """Four samples, one of them right: any large J gives p = ¼; the least of those is taken."""
    base = torch.tensor([[9.0, 0.0]], dtype=torch.float64)
    noise = torch.tensor([-1.0, 1.0, 1.0, 1.0], dtype=torch.float64).reshape(4, 1, 1)
    noisy = base + noise * torch.tensor([1.0, -1.0], dtype=torch.float64)
    found = calibrate_j(Classification(), base, noisy, torch.ones(1), torch.tensor([1]))
    assert found.log_likelihood == pytest.approx(math.log(0.25), abs=1e-5)
    assert 8 < found.j < 20


def test_the_search_for_j_ends() -> None:
    """A gain that grows without end (one input, better with every J) is stopped at a million."""
    base = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    noisy = base + torch.tensor([[[-1e-9, 0.0]]], dtype=torch.float64)
    found = calibrate_j(Classification(), base, noisy, torch.ones(1), torch.tensor([1]))
    assert 9e5 < found.j < 2e6


@pytest.mark.parametrize("task", [Classification(), Dense(), Binary(), Multilabel()])
def test_j_star_of_every_task_is_a_maximum(task: Classification | Multilabel) -> None:
    """Over-confident and wrong in a fifth of the cases: J* > 0, and no neighbour is better.

    With so few inputs and samples the likelihood has small bumps: of those, not the best one need
    be found.
    """
    generator = torch.Generator().manual_seed(0)
    n, shape = 120, {"dense": (5, 3), "binary": (1,), "multilabel": (4,)}.get(task.name, (3,))
    base = 8 * torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    noise = torch.randn(4, *base.shape, generator=generator, dtype=torch.float64)
    noisy = torch.cat([base + noise, base - noise])
    labels = task.label(base)
    flipped = torch.rand(labels.shape, generator=generator) < 0.2
    labels = torch.where(flipped, (labels + 1) % (2 if isinstance(task, Multilabel) else 3), labels)
    if task.name == "dense":
        labels[:, 0] = -100
    stretch = torch.ones(base.shape[:-1], dtype=torch.float64)
    found = calibrate_j(task, base, noisy, stretch, labels)
    assert found.j > 0

    def at(j: float) -> float:
        return mean_log_likelihood(task, base, noisy, j * stretch, labels)

    assert found.log_likelihood == at(found.j)
    assert found.log_likelihood >= max(at(found.j * k) for k in np.geomspace(0.98, 1.02, 41)) - 1e-9
    assert found.log_likelihood >= max(at(j) for j in np.geomspace(0.01, 100, 101)) - 3e-3


# ------------------------------------------------------------------------------ likelihoods


def test_positions_without_a_label_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3, 4, 2, generator=generator).double()
    noisy = base + torch.randn(5, 3, 4, 2, generator=generator)
    labels = torch.tensor([[0, 1, -100, 0], [-100] * 4, [1, 1, 1, -100]])
    stretch = torch.ones(3, 4, dtype=torch.float64)
    plain = [
        math.log(float(noisy[:, i, k].softmax(-1).mean(0)[labels[i, k]]))
        for i in range(3)
        for k in range(4)
        if labels[i, k] >= 0
    ]
    found = mean_log_likelihood(Dense(), base, noisy, stretch, labels)
    assert found == pytest.approx(sum(plain) / len(plain))


def test_blocks_of_rows_do_not_change_the_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    base, noisy, stretch, labels = classes(1, confidence=2.0)
    whole = mean_log_likelihood(Classification(), base, noisy, stretch, labels)
    once = calibrate_j(Classification(), base, noisy, stretch, labels)
    monkeypatch.setattr(blocks, "_CACHED", 100)
    pieces = mean_log_likelihood(Classification(), base, noisy, stretch, labels)
    assert pieces == pytest.approx(whole, rel=1e-13)
    assert calibrate_j(Classification(), base, noisy, stretch, labels).j == pytest.approx(once.j)


def test_the_search_reads_logits_as_little_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks; the grid at once; what is not stretched, once. The same J* all the same."""
    base, noisy, stretch, labels = classes(3, confidence=3.0, n=60)
    stretch[::2] = 0.0
    noisy[0, 8] = torch.nan  # no likelihood, at no J
    seen: list[tuple[int, ...]] = []

    class Counting(Classification):
        def log_likelihood(
            self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
        ) -> Tensor:
            seen.append(tuple(samples.shape))
            return super().log_likelihood(samples, labels, noise_var)

    monkeypatch.setattr(blocks, "_CACHED", 8 * noisy[:, :1].numel())
    found = calibrate_j(Counting(), base, noisy, stretch, labels)
    asked = sum(rows for _, rows, _ in seen)
    assert max(rows for _, rows, _ in seen) <= 8
    assert asked % 30 == 0
    assert asked // 30 < 34 + 3 * 22 + 12  # J = 0, the grid, three hills, and a longer grid
    kept = torch.arange(60) != 8
    whole = [part[kept] for part in (base, stretch, labels)]
    values = [plain_likelihood(whole[0], noisy[:, kept], *whole[1:], j) for j in FINE]
    assert found.log_likelihood >= max(values) - 1e-10
    at_best = plain_likelihood(whole[0], noisy[:, kept], *whole[1:], found.j)
    assert found.log_likelihood == pytest.approx(at_best, abs=1e-12)


@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0, 1e4])
def test_log_probabilities_are_those_of_log_softmax(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = size * torch.randn(4, 30, 1000, generator=generator, dtype=torch.float64)
    logits[:, 0, 5:] = -math.inf
    labels = torch.randint(1000, (30,), generator=generator)
    found = Classification().log_likelihood(logits, labels)
    picked = logits.log_softmax(-1)[:, torch.arange(30), labels]
    expected = picked.logsumexp(0) - math.log(4)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert (expected[0] == -math.inf) == (int(labels[0]) >= 5)


@PROPERTY
@given(st.integers(0, 100), st.integers(0, 1 << 23))
def test_row_blocks_cover_every_row_once_within_bounds(n: int, row_size: int) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for found, most in (
        (blocks.row_blocks(n, row_size), blocks._NUMBERS),
        (blocks.cached_blocks(n, row_size, cpu), blocks._CACHED),
        (blocks.cached_blocks(n, row_size, gpu), blocks._NUMBERS),
    ):
        parts = list(found)
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
        assert all((p.stop - p.start) * row_size <= max(most, row_size) for p in parts)


# ------------------------------------------------------------------------------- regression


def numbers(
    seed: int, j: float, noise_var: list[float], n: int = 3000
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Targets from the model itself: N(base, σ² + J²γ²) with antithetic samples base ± 1."""
    generator = torch.Generator().manual_seed(seed)
    o = len(noise_var)
    base = torch.randn(n, o, generator=generator, dtype=torch.float64)
    noisy = base + torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None, None]
    stretch = 3 * torch.rand(n, generator=generator, dtype=torch.float64)
    variance = torch.tensor(noise_var, dtype=torch.float64) + (j * stretch[:, None]).square()
    drawn = torch.randn(n, o, generator=generator, dtype=torch.float64)
    return base, noisy, stretch, base + variance.sqrt() * drawn


def negative_likelihood(x: np.ndarray, problem: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    """−mean log N(y; base, σ² + J²γ²) at x = (log J, log σ² of each output)."""
    base, _, stretch, labels = (t.numpy() for t in problem)
    variance = np.exp(x[1:]) + np.exp(2 * x[0]) * stretch[:, None] ** 2
    each = np.log(2 * np.pi * variance) + (labels - base) ** 2 / variance
    return float(0.5 * each.sum(axis=1).mean())


@pytest.mark.parametrize(
    ("j", "noise_var"), [(1.0, [0.25]), (0.3, [1.0]), (2.0, [0.01]), (0.8, [0.5, 4.0])]
)
def test_regression_constants_equal_scipys_optimum(j: float, noise_var: list[float]) -> None:
    problem = numbers(0, j, noise_var)
    found = calibrate_j(Regression(), *problem)
    start = np.log([j, *noise_var])
    best = optimize.minimize(
        negative_likelihood, start, args=(problem,), method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-13, "maxiter": 4000},
    )  # fmt: skip
    assert found.log_likelihood == pytest.approx(-best.fun, abs=1e-7)
    assert found.j == pytest.approx(math.exp(best.x[0]), rel=2e-3)
    assert found.noise_var is not None
    np.testing.assert_allclose(found.noise_var.numpy(), np.exp(best.x[1:]), rtol=5e-3)
    assert found.j == pytest.approx(j, rel=0.15)  # and it is near the truth


def test_regression_at_j_zero_has_the_mean_squared_residual() -> None:
    problem = numbers(1, 0.5, [0.5, 2.0])
    base, _, _, labels = problem
    found = calibrate_j(Regression(), *problem)
    mse = (labels - base).square().mean(dim=0)
    assert found.noise_var_at_0 is not None
    np.testing.assert_allclose(found.noise_var_at_0.numpy(), mse.numpy(), rtol=1e-3)
    plain = float(-0.5 * (torch.log(2 * math.pi * mse) + 1).sum())
    assert found.log_likelihood_at_0 == pytest.approx(plain, abs=1e-6)


def test_regression_with_even_noise_gets_j_zero() -> None:
    """The residuals do not grow with the stretch: any J > 0 is worse."""
    base, noisy, stretch, labels = numbers(2, 0.0, [1.0])
    labels = base + 1.0 * torch.sign(labels - base)  # every residual is 1
    found = calibrate_j(Regression(), base, noisy, stretch, labels)
    assert found.j == 0.0
    assert found.noise_var is found.noise_var_at_0


def test_noise_variance_has_a_floor() -> None:
    """A network that repeats its targets: σ² is a millionth of their variance, not 0."""
    base, noisy, stretch, _ = numbers(3, 1.0, [1.0])
    found = calibrate_j(Regression(), base, noisy, torch.zeros_like(stretch), base)
    floor = 1e-6 * float(base.var(correction=0))
    assert found.noise_var is not None
    assert float(found.noise_var) == pytest.approx(floor)


@pytest.mark.parametrize("seed", range(5))
def test_noise_variance_is_the_best_one_for_any_spread(seed: int) -> None:
    """Also where the few large residuals have no spread: σ² is then far above the mean one."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.arange(300).unsqueeze(1) < 3 + seed
    unit = torch.rand(300, 1, generator=generator, dtype=torch.float64)
    spread, residual = torch.where(few, 0.01, 1000.0) * unit, torch.where(few, 100.0, 0.01) * unit
    floor = torch.tensor([1e-6], dtype=torch.float64)
    found = float(_best_noise_variance(residual, spread, floor))

    def cost(log_sigma2: float) -> float:
        variance = spread + math.exp(log_sigma2)
        return float((variance.log() + residual / variance).mean())

    best = optimize.minimize_scalar(cost, bounds=(math.log(1e-6), 10), method="bounded")
    assert found > 4 * float(residual.mean())
    assert cost(math.log(found)) <= best.fun + 1e-6
    assert found == pytest.approx(math.exp(best.x), rel=1e-2)
