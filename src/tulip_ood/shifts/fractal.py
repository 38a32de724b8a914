"""A fractal in the image's colours."""

import math

import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform
from tulip_ood.shifts.colours import colours_of

__all__ = ["fractal"]

_STEPS = 24


def fractal(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """A Julia set: how soon z ↦ z² + c leaves a disc, each answer in a colour of the image.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 3, 16, 16)
        >>> fractal(x, x.amin(), x.amax(), seed=0).shape
        torch.Size([1, 3, 16, 16])
    """
    n, channels, height, width = x.shape
    turn = 2 * math.pi * uniform((n, 1, 1), seed=seed, name="fractal/turn")
    # Just outside the main cardioid of the Mandelbrot set, where Julia sets are rich.
    radius = (1 - turn.cos()) / 2
    real = 1.04 * (radius * turn.cos() + 0.25)
    imaginary = 1.04 * radius * turn.sin()
    down, across = (
        torch.linspace(-1.3, 1.3, side, dtype=torch.float32) for side in (height, width)
    )
    ys = down.reshape(1, height, 1).expand(n, height, width)
    xs = across.reshape(1, 1, width).expand(n, height, width)
    left = torch.zeros((n, height, width), dtype=torch.int64)
    for _ in range(_STEPS):
        inside = xs.square() + ys.square() <= 4
        left += inside
        following = xs.square() - ys.square() + real
        ys = torch.where(inside, 2 * xs * ys + imaginary, ys)
        xs = torch.where(inside, following, xs)
    colours = colours_of(x, _STEPS + 1, seed=seed, name="fractal/colours")
    at = left.flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return colours.gather(2, at).view_as(x)
