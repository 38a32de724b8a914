"""Strong pixel noise."""

from torch import Tensor

from tulip_ood.numerics.random import normal

__all__ = ["noise"]


def noise(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """x + Gaussian noise of a fifth of the channel's range.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 1, 2, 2)
        >>> noise(x, torch.tensor(0.0), torch.tensor(1.0), seed=0).shape
        torch.Size([1, 1, 2, 2])
    """
    return x + 0.2 * (high - low) * normal(x.shape, seed=seed, name="noise").to(x.dtype)
