"""Overlapping discs: a "dead leaves" image."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform
from tulip_ood.shifts.colours import colours_of

__all__ = ["dead_leaves"]

_DISCS = 60


def dead_leaves(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """60 discs of radius .05·S/U(.1, 1), coloured by random pixels of the image.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 3, 16, 16)
        >>> dead_leaves(x, x.amin(), x.amax(), seed=0).shape
        torch.Size([1, 3, 16, 16])
    """
    n, _, height, width = x.shape
    side = max(height, width)
    radius = 0.05 * side / (0.1 + 0.9 * uniform((n, _DISCS), seed=seed, name="leaves/radius"))
    centre_y = height * uniform((n, _DISCS), seed=seed, name="leaves/y")
    centre_x = width * uniform((n, _DISCS), seed=seed, name="leaves/x")
    colours = colours_of(x, _DISCS, seed=seed, name="leaves/colour")
    ys = torch.arange(height, dtype=torch.float32).reshape(1, height, 1)
    xs = torch.arange(width, dtype=torch.float32).reshape(1, 1, width)
    out = x.mean(dim=(2, 3), keepdim=True).expand_as(x).clone()
    for k in range(_DISCS):
        distance = (ys - centre_y[:, k, None, None]).square()
        distance = distance + (xs - centre_x[:, k, None, None]).square()
        inside = (distance <= radius[:, k, None, None].square()).unsqueeze(1)
        out = torch.where(inside, colours[:, :, k, None, None], out)
    return out
