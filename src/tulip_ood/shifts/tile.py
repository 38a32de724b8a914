"""A small patch, tiled."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import integers

__all__ = ["random_patch", "tile"]


def tile(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """A patch of a quarter of the side, repeated 4 × 4: a texture.

    Example:
        >>> import torch
        >>> out = tile(torch.randn(1, 1, 8, 8), torch.zeros(1), torch.ones(1), seed=0)
        >>> torch.equal(out[..., :2, :2], out[..., 2:4, 4:6])
        True
    """
    height, width = x.shape[-2:]
    patch = random_patch(x, max(1, height // 4), max(1, width // 4), seed=seed, name="tile")
    rows, columns = -(-height // patch.shape[-2]), -(-width // patch.shape[-1])
    return patch.repeat(1, 1, rows, columns)[..., :height, :width]


def random_patch(x: Tensor, h: int, w: int, *, seed: int, name: str) -> Tensor:
    """A patch of h × w at a random place of every image, [N, C, h, w].

    Example:
        >>> import torch
        >>> random_patch(torch.zeros(2, 3, 8, 8), 2, 2, seed=0, name="p").shape
        torch.Size([2, 3, 2, 2])
    """
    n, _, height, width = x.shape
    tops = integers((n,), height - h + 1, seed=seed, name=f"{name}/top").tolist()
    lefts = integers((n,), width - w + 1, seed=seed, name=f"{name}/left").tolist()
    return torch.stack(
        [x[i, :, t : t + h, f : f + w] for i, (t, f) in enumerate(zip(tops, lefts, strict=True))]
    )
