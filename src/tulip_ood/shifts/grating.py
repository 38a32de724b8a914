"""A sine grating in two colours of the image."""

import math

import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform
from tulip_ood.shifts.colours import colours_of

__all__ = ["grating"]


def grating(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """A sine wave of 1–12 cycles in a random direction, between two of the image's colours.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 3, 16, 16)
        >>> grating(x, x.amin(), x.amax(), seed=0).shape
        torch.Size([1, 3, 16, 16])
    """
    n, _, height, width = x.shape

    def draw(name: str) -> Tensor:
        return uniform((n, 1, 1, 1), seed=seed, name=f"grating/{name}")

    cycles = 1.0 + 11.0 * draw("cycles")
    angle, phase = math.pi * draw("angle"), 2 * math.pi * draw("phase")
    ys = torch.linspace(0, 1, height, dtype=torch.float32).reshape(1, 1, height, 1)
    xs = torch.linspace(0, 1, width, dtype=torch.float32).reshape(1, 1, 1, width)
    wave = (2 * math.pi * cycles * (angle.cos() * xs + angle.sin() * ys) + phase).sin()
    colours = colours_of(x, 2, seed=seed, name="grating/colours")
    first, second = colours[:, :, 0, None, None], colours[:, :, 1, None, None]
    return first + (second - first) * ((wave + 1) / 2).to(x.dtype)
