"""Pseudo-OOD for rows of numbers (tables, embeddings, time series)."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import normal, permutation, uniform
from tulip_ood.shifts.average import partner

__all__ = ["mixed_rows", "noisy_rows", "permuted_columns"]


def mixed_rows(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Every number from one of two rows at random: each is plausible, the combination is not.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        >>> set(mixed_rows(x, x.amin(0), x.amax(0), seed=0).flatten().tolist()) <= {0.0, 1.0}
        True
    """
    other = x[partner(len(x), seed, "mixed_rows")]
    return torch.where(uniform(x.shape, seed=seed, name="mixed_rows/pick") < 0.5, x, other)


def permuted_columns(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """The numbers of every row in a random order.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 2.0, 3.0]])
        >>> permuted_columns(x, x.amin(0), x.amax(0), seed=0).sort().values
        tensor([[1., 2., 3.]])
    """
    flat = x.flatten(1)
    width = flat.shape[1]
    order = torch.stack(
        [permutation(width, seed=seed, name="permuted_columns", index=i) for i in range(len(x))]
    )
    return flat.gather(1, order).reshape(x.shape)


def noisy_rows(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Every number plus noise as large as its column's own deviation.

    Example:
        >>> import torch
        >>> x = torch.randn(4, 3)
        >>> noisy_rows(x, x.amin(0), x.amax(0), seed=0).shape
        torch.Size([4, 3])
    """
    deviation = x.std(dim=0, correction=0, keepdim=True)
    return x + deviation * normal(x.shape, seed=seed, name="noisy_rows").to(x.dtype)
