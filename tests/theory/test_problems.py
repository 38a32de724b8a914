"""The toy problems: smooth, balanced, the same for the same seed."""

import pytest
import torch
from scipy.interpolate import CubicSpline

from tulip_ood.errors import InputError
from tulip_ood.theory.problems import CLASSIFICATION, moons, spline


def test_the_curve_is_the_natural_spline() -> None:
    _, curve = spline(12, seed=3)
    known = CubicSpline(curve.knots, curve.heights, bc_type="natural")
    z = torch.linspace(-3, 3, 200, dtype=torch.float64)
    assert torch.allclose(curve(z), torch.from_numpy(known(z)))
    for end in (-3.0, 3.0):  # goes on straight
        beyond = torch.tensor([1.5 * end], dtype=torch.float64)
        straight = float(known(end)) + 0.5 * end * float(known(end, 1))
        assert float(curve(beyond)) == pytest.approx(straight)


def test_points_of_the_curve_leave_a_gap() -> None:
    for seed in range(5):
        points, _ = spline(12, seed=seed)
        x = points.x[:, 0]
        assert (x.diff() > 0.02).all()
        assert float(x.diff().max()) > 2 * float(x.diff().median())
        assert float(x.abs().max()) < 3


@pytest.mark.parametrize("name", list(CLASSIFICATION))
def test_two_classes_are_balanced_and_apart(name: str) -> None:
    make = CLASSIFICATION[name]
    points, other = make(200), make(200, seed=1)
    assert float(points.y.mean()) == 0.5
    assert torch.equal(points.x, make(200).x)
    assert not torch.equal(points.x, other.x)
    nearest = torch.cdist(other.x, points.x).argmin(dim=1)  # the classes do not overlap
    assert float((points.y[nearest] == other.y).double().mean()) > 0.97


def test_too_few_points_are_refused() -> None:
    for make in (lambda: spline(1), lambda: moons(1)):
        with pytest.raises(InputError, match="got 1"):
            make()
