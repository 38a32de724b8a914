"""A grid of patches in a random order."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import permutation

__all__ = ["patches"]

_GRID = 4


def patches(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """A 4 × 4 grid of patches, permuted for every image: local texture without the whole.

    Example:
        >>> import torch
        >>> x = torch.arange(16.0).reshape(1, 1, 4, 4)
        >>> torch.equal(patches(x, x.amin(), x.amax(), seed=0).flatten().sort().values, x.flatten())
        True
    """
    n, channels, height, width = x.shape
    h, w = height // _GRID, width // _GRID
    cut = x[:, :, : h * _GRID, : w * _GRID]
    tiles = cut.reshape(n, channels, _GRID, h, _GRID, w).permute(0, 2, 4, 1, 3, 5)
    tiles = tiles.reshape(n, _GRID * _GRID, channels, h, w)
    order = torch.stack(
        [permutation(_GRID * _GRID, seed=seed, name="patches", index=i) for i in range(n)]
    )
    tiles = tiles[torch.arange(n).unsqueeze(1), order]
    tiles = tiles.reshape(n, _GRID, _GRID, channels, h, w).permute(0, 3, 1, 4, 2, 5)
    out = x.clone()  # a remainder that the grid does not cover stays as it is
    out[:, :, : h * _GRID, : w * _GRID] = tiles.reshape(n, channels, h * _GRID, w * _GRID)
    return out
