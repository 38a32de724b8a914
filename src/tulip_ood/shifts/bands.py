"""Colours shuffled: bands of brightness exchanged in every channel."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform

__all__ = ["bands"]

_BANDS = 4


def bands(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Each channel's range in four bands, put into another order: edges stay, colours do not.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.0, 0.3, 0.6, 0.9]).reshape(1, 1, 1, 4)
        >>> bands(x, torch.zeros(1), torch.ones(1), seed=0).flatten().sort().values
        tensor([0.0500, 0.4000, 0.6000, 0.7500])
    """
    n, channels = x.shape[:2]
    order = uniform((n, channels, _BANDS), seed=seed, name="bands").argsort(dim=-1)
    width = (high - low).clamp_min(torch.finfo(x.dtype).tiny) / _BANDS
    place = (x - low) / width
    band = place.floor().clamp(0, _BANDS - 1)
    moved = order.gather(2, band.long().flatten(2)).view_as(x)
    return low + width * (moved + (place - band))
