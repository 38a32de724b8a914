"""The photographic negative."""

from torch import Tensor

__all__ = ["negative"]


def negative(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """low + high − x: the same shapes in impossible colours.

    Example:
        >>> import torch
        >>> negative(torch.tensor([0.0, 1.0]), torch.tensor(0.0), torch.tensor(1.0), seed=0)
        tensor([1., 0.])
    """
    return low + high - x
