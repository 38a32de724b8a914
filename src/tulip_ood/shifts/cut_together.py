"""Parts of two images, cut together."""

import torch
from torch import Tensor

from tulip_ood.shifts.average import partner

__all__ = ["cut_together"]


def cut_together(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """The left half of an image beside the right half of another.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1).expand(2, 1, 1, 4)
        >>> cut_together(x, x.amin(0), x.amax(0), seed=0)[0].flatten()
        tensor([0., 0., 2., 2.])
    """
    half = x.shape[-1] // 2
    other = x[partner(len(x), seed, "cut_together")]
    return torch.cat([x[..., :half], other[..., half:]], dim=-1)
