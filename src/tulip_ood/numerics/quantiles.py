"""Quantiles of any number of values: `torch.quantile` refuses more than 16 million."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["quantiles"]


def quantiles(values: Tensor, levels: Sequence[float]) -> list[float]:
    """Linear between order statistics, as numpy.percentile; float64.

    Args:
        values: Of any shape, at least one, no NaN.
        levels: Between 0 and 1.

    Example:
        >>> quantiles(torch.tensor([3.0, 1.0, 2.0, 10.0]), (0.5, 1.0))
        [2.5, 10.0]
    """
    ranked = values.to(torch.float64).flatten().sort().values
    found = []
    for level in levels:
        place = level * (len(ranked) - 1)
        low = int(place)
        value, share = float(ranked[low]), place - low
        if share > 0:  # of an infinite step, none is not a number
            value += share * (float(ranked[low + 1]) - value)
        found.append(value)
    return found
