"""Strong blur."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["blur"]


def blur(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Area-downscaled to a quarter of the side and bilinear back.

    Example:
        >>> import torch
        >>> x = torch.arange(64.0).reshape(1, 1, 8, 8)
        >>> float(blur(x, x.amin(), x.amax(), seed=0).std()) < float(x.std())
        True
    """
    height, width = x.shape[-2:]
    small = F.interpolate(x, size=(max(1, height // 4), max(1, width // 4)), mode="area")
    return F.interpolate(small, size=(height, width), mode="bilinear", align_corners=False)
