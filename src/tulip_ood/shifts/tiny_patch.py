"""A tiny patch, enlarged."""

import torch.nn.functional as F
from torch import Tensor

from tulip_ood.shifts.tile import random_patch

__all__ = ["tiny_patch"]


def tiny_patch(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """A patch of a sixth of the side, enlarged (bicubic) to the whole: smooth blobs of colour.

    Example:
        >>> import torch
        >>> tiny_patch(torch.zeros(1, 3, 12, 12), torch.zeros(1), torch.ones(1), seed=0).shape
        torch.Size([1, 3, 12, 12])
    """
    height, width = x.shape[-2:]
    patch = random_patch(x, max(1, height // 6), max(1, width // 6), seed=seed, name="tiny_patch")
    return F.interpolate(patch, size=(height, width), mode="bicubic", align_corners=False)
