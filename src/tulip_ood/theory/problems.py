"""Toy problems on which the theory can be looked at: a curve, two moons, two spiral arms."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import normal, permutation, uniform

__all__ = ["CLASSIFICATION", "Points", "Spline", "moons", "spiral", "spline"]


@dataclass(frozen=True)
class Points:
    """Labelled inputs, float64.

    Attributes:
        x: [n, d].
        y: [n, 1]; real numbers, or 0 and 1 for two classes.

    Example:
        >>> len(Points(torch.zeros(3, 2), torch.zeros(3, 1)))
        3
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Spline:
    """A natural cubic spline: a smooth curve through knots, straight beyond the outer two.

    Attributes:
        knots: Where they are, [k], rising.
        heights: The curve there, [k].

    Example:
        >>> line = Spline(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> line(torch.tensor([0.25, 5.0]))
        tensor([0.2500, 5.0000], dtype=torch.float64)
    """

    knots: Tensor
    heights: Tensor

    def _bends(self) -> Tensor:
        """The second derivative at each knot, 0 at the outer two."""
        k, h = self.knots.double(), self.heights.double()
        gap = k.diff()
        system = torch.eye(len(k), dtype=torch.float64)
        right = torch.zeros(len(k), dtype=torch.float64)
        slopes = h.diff() / gap
        for i in range(1, len(k) - 1):
            system[i, i - 1 : i + 2] = torch.stack([gap[i - 1], 2 * (gap[i - 1] + gap[i]), gap[i]])
            right[i] = 6 * (slopes[i] - slopes[i - 1])
        bends: Tensor = torch.linalg.solve(system, right)
        return bends

    def __call__(self, x: Tensor) -> Tensor:
        """The curve at x, of any shape."""
        k, h, bends = self.knots.double(), self.heights.double(), self._bends()
        x = x.to(torch.float64)
        inside = x.clamp(float(k[0]), float(k[-1]))
        i = torch.searchsorted(k, inside.contiguous(), right=True).clamp(1, len(k) - 1)
        gap, left, right = k[i] - k[i - 1], k[i] - inside, inside - k[i - 1]
        a, b = bends[i - 1], bends[i]
        value = (a * left**3 + b * right**3) / (6 * gap)
        value = value + (h[i - 1] / gap - a * gap / 6) * left + (h[i] / gap - b * gap / 6) * right
        # a and b are 0 at the outer knots, where the slope is that of the chord and one bend.
        slope = (h[i] - h[i - 1]) / gap + torch.where(x < k[0], -b, a) * gap / 6
        return value + (x - inside) * slope


def spline(points: int = 12, *, seed: int = 0, knots: int = 7) -> tuple[Points, Spline]:
    """Points of a random smooth curve on [−3, 3], in two groups with a gap between them.

    A gap inside and room outside: an uncertainty should grow in both.

    Args:
        points: How many.
        seed: Of the curve and of the places.
        knots: Of the curve; more are more wiggly.

    Example:
        >>> found, curve = spline(12)
        >>> found.x.shape, bool((curve(found.x) == found.y).all())
        (torch.Size([12, 1]), True)
    """
    if points < 2 or knots < 3:
        raise InputError(f"a curve needs 2 points and 3 knots, got {points} and {knots}")
    curve = Spline(
        torch.linspace(-3, 3, knots, dtype=torch.float64),
        normal((knots,), seed=seed, name="theory.spline.heights").to(torch.float64),
    )
    # Evenly spread with some disorder, so that no two points lie on top of each other.
    moved = uniform((points,), seed=seed, name="theory.spline.places").to(torch.float64)
    place = (torch.arange(points) + 0.25 + 0.5 * moved) / points  # rising, in (0, 1)
    x = torch.where(place < 0.6, -2.6 + 2.8 * place / 0.6, 1.4 + 1.2 * (place - 0.6) / 0.4)
    return Points(x[:, None], curve(x)[:, None]), curve


def _two_classes(n: int, curve: Tensor, noise: float, seed: int, name: str) -> Points:
    """The second class is the first one turned by half a turn; both shuffled."""
    y = (torch.arange(n) % 2).to(torch.float64)
    x = curve * (1 - 2 * y[:, None])
    x = x + noise * normal((n, 2), seed=seed, name=f"{name}.noise").to(torch.float64)
    order = permutation(n, seed=seed, name=f"{name}.order")
    return Points(x[order], y[order, None])


def moons(points: int = 60, *, seed: int = 0, noise: float = 0.12) -> Points:
    """Two interleaved half circles, one a class, around the origin.

    Args:
        points: In all; half of them in each class.
        seed: Of the places and the noise.
        noise: Standard deviation around the curves.

    Example:
        >>> found = moons(40)
        >>> found.x.shape, float(found.y.mean())
        (torch.Size([40, 2]), 0.5)
    """
    _check(points)
    angle = math.pi * uniform((points,), seed=seed, name="theory.moons.angle").to(torch.float64)
    curve = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], dim=1)
    return _two_classes(points, 1.4 * curve, noise, seed, "theory.moons")


def spiral(points: int = 80, *, seed: int = 0, noise: float = 0.06) -> Points:
    """Two arms of a spiral around the origin, one a class.

    Args:
        points: In all; half of them in each class.
        seed: Of the places and the noise.
        noise: Standard deviation around the arms.

    Example:
        >>> found = spiral(40)
        >>> bool((found.x.norm(dim=1) < 2.6).all())
        True
    """
    _check(points)
    # The root spreads the points evenly along the arm, which is longer further out.
    place = uniform((points,), seed=seed, name="theory.spiral.place").to(torch.float64).sqrt()
    angle, radius = 2.25 * math.pi * place, 0.25 + 1.85 * place
    curve = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return _two_classes(points, curve, noise, seed, "theory.spiral")


def _check(points: int) -> None:
    if points < 2:
        raise InputError(f"two classes need at least 2 points, got {points}")


CLASSIFICATION = {"two moons": moons, "spiral": spiral}
