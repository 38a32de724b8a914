"""The average of two images."""

from torch import Tensor

from tulip_ood.numerics.random import permutation

__all__ = ["average"]


def average(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """(x + x′)/2, x′ another row: two objects at once.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1)
        >>> average(x, x.amin(0), x.amax(0), seed=0).flatten()
        tensor([1., 1.])
    """
    return (x + x[partner(len(x), seed, "average")]) / 2


def partner(n: int, seed: int, name: str) -> Tensor:
    """For every row another row (itself only if there is no other): a random cycle through all."""
    order = permutation(n, seed=seed, name=name)
    other = order.clone()
    other[order] = order.roll(-1)
    return other
