"""The integrator on equations whose solution is known."""

import math

import pytest
import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.theory.runge_kutta import Integrated, integrate

TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def solve(slope, start: Tensor, tolerance: float, **rest) -> Integrated:
    allowed = {"error": lambda wrong, _: float(wrong.abs().max()) / tolerance}
    return integrate(slope, start, **({"first_step": 1e-3} | allowed | rest))


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12])
def test_an_oscillator_comes_round(tolerance: float) -> None:
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    end = solve(lambda y: TURN @ y, start, tolerance, time=4 * math.pi)
    assert end.time == 4 * math.pi
    assert float((end.state - start).abs().max()) < 2 * end.steps * tolerance


def test_it_is_of_order_five() -> None:
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    errors = []
    for step in (0.1, 0.05):
        state = start
        for _ in range(round(1 / step)):  # one forced step a call
            state = integrate(
                lambda y: TURN @ y, state, time=step, first_step=step, error=lambda *_: 0.5
            ).state
        exact = torch.tensor([math.cos(1.0), -math.sin(1.0)], dtype=torch.float64)
        errors.append(float((state - exact).norm()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(5, abs=0.2)


def test_a_first_step_far_too_long_is_taken_back() -> None:
    one = torch.ones(1, dtype=torch.float64)
    end = solve(lambda y: -50 * y, one, 1e-9, time=1.0, first_step=1e3)
    assert abs(float(end.state) - math.exp(-50)) < 1e-8


def test_nonlinear_until_told_to_stop() -> None:
    # y' = y², y = 1/(1 − t): stop as soon as the slope is 100, at y ≈ 10, before it blows up.
    one = torch.ones(1, dtype=torch.float64)
    end = solve(lambda y: y * y, one, 1e-10, time=math.inf, stop=lambda slope: float(slope) >= 100)
    assert float(end.state) == pytest.approx(1 / (1 - end.time), rel=1e-6)
    assert 10 <= float(end.state) < 12
    at_once = solve(lambda y: y * y, one, 1e-10, time=5.0, stop=lambda _: True)
    assert (at_once.time, at_once.steps) == (0.0, 0)


def test_a_solution_that_blows_up_is_refused() -> None:
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"no end after 500 steps, at time 0\.999\d* of 2"):
        solve(lambda y: y * y, one, 1e-9, time=2.0, max_steps=500)
