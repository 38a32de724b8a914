"""An enlarged corner."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["corner"]


def corner(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """The top-left quarter, enlarged to the whole: a part without its object.

    Example:
        >>> import torch
        >>> corner(torch.zeros(1, 3, 8, 8), torch.zeros(1), torch.ones(1), seed=0).shape
        torch.Size([1, 3, 8, 8])
    """
    height, width = x.shape[-2:]
    part = x[..., : max(1, height // 2), : max(1, width // 2)]
    return F.interpolate(part, size=(height, width), mode="bilinear", align_corners=False)
