"""Where numbers would stand in a sorted row."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["places"]


def places(rising: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """How many of the sorted numbers are smaller than each value (with `right`, not larger).

    As `torch.searchsorted`, which wakes all threads for a few hundred values on a CPU: beside a
    GPU, waiting for them takes longer than the search, and never equally long.

    Args:
        rising: Sorted, [n], float64.
        values: Any shape, float64, on the same device.
        right: Count those that are equal, too.

    Example:
        >>> rising = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
        >>> two = torch.tensor([2.0], dtype=torch.float64)
        >>> places(rising, two), places(rising, two, right=True)
        (tensor([1]), tensor([3]))
    """
    if rising.device.type != "cpu" or values.device.type != "cpu":
        return torch.searchsorted(rising, values.contiguous(), right=right)
    row, wanted = (tensor.detach().numpy() for tensor in (rising, values))
    found = np.searchsorted(row, wanted, side="right" if right else "left")
    return torch.from_numpy(np.asarray(found, dtype=np.int64))
