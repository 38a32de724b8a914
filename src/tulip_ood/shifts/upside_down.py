"""The image upside down."""

from torch import Tensor

__all__ = ["upside_down"]


def upside_down(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Rotated by 180°.

    Example:
        >>> import torch
        >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> upside_down(x, x.amin(), x.amax(), seed=0).flatten()
        tensor([3., 2., 1., 0.])
    """
    return x.flip(-1, -2)
