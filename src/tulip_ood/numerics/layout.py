"""How images lie in memory."""

from torch import Tensor

__all__ = ["colours_last"]

_COLOURS = (1, 3, 4)  # grey, RGB, RGBA


def colours_last(images: Tensor) -> bool:
    """Whether images [N, …, …, …] hold their colours along the last axis.

    Example:
        >>> import torch
        >>> colours_last(torch.zeros(2, 32, 32, 3)), colours_last(torch.zeros(2, 3, 32, 32))
        (True, False)
    """
    _, first, second, last = images.shape
    return last in _COLOURS and min(first, second) > max(_COLOURS)
