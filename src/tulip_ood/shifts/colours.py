"""Colours that an image has."""

from torch import Tensor

from tulip_ood.numerics.random import integers

__all__ = ["colours_of"]


def colours_of(x: Tensor, count: int, *, seed: int, name: str) -> Tensor:
    """Some pixels of every image, drawn with replacement, [N, C, count].

    Example:
        >>> import torch
        >>> colours_of(torch.zeros(2, 3, 8, 8), 5, seed=0, name="leaves").shape
        torch.Size([2, 3, 5])
    """
    n, channels, height, width = x.shape
    pixel = integers((n, count), height * width, seed=seed, name=name)
    return x.flatten(2).gather(2, pixel.unsqueeze(1).expand(-1, channels, -1))
