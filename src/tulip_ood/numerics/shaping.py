"""Shaping of penultimate features in front of the last layer: ReAct, ASH, SCALE.

Each is a map of features [N, d], row by row. "Percentile p" keeps the k = d − round(d·p/100)
largest features of a row.
"""

import torch
from torch import Tensor

__all__ = ["ash_b", "ash_p", "ash_s", "kept_features", "react", "scale"]


def kept_features(d: int, percentile: float) -> int:
    """How many of d features a percentile keeps, at least one.

    Example:
        >>> kept_features(512, 90)
        51
    """
    return max(1, d - round(d * percentile / 100.0))


def react(features: Tensor, clip: float) -> Tensor:
    """min(h, clip) (Sun et al., NeurIPS 2021).

    Example:
        >>> import torch
        >>> react(torch.tensor([[0.5, 3.0]]), 1.0)
        tensor([[0.5000, 1.0000]])
    """
    return features.clamp_max(clip)


def ash_p(features: Tensor, percentile: float) -> Tensor:
    """The largest features as they are, the rest 0 (Djurisic et al., ICLR 2023).

    Example:
        >>> import torch
        >>> ash_p(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 50)
        tensor([[0., 0., 3., 4.]])
    """
    largest = features.topk(kept_features(features.shape[1], percentile), dim=1)
    return torch.zeros_like(features).scatter(1, largest.indices, largest.values)


def ash_b(features: Tensor, percentile: float) -> Tensor:
    """The largest k features all set to (sum of the row)/k, the rest 0.

    Example:
        >>> import torch
        >>> ash_b(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 50)
        tensor([[0., 0., 5., 5.]])
    """
    k = kept_features(features.shape[1], percentile)
    where = features.topk(k, dim=1).indices
    each = (features.sum(dim=1, keepdim=True) / k).expand(-1, k)
    return torch.zeros_like(features).scatter(1, where, each)


def ash_s(features: Tensor, percentile: float) -> Tensor:
    """As `ash_p`, then times exp(sum before / sum after).

    Example:
        >>> import torch
        >>> ash_s(torch.tensor([[1.0, 1.0]]), 50)[0].max()
        tensor(7.3891)
    """
    pruned = ash_p(features, percentile)
    return pruned * _ratio(features, pruned).exp()


def scale(features: Tensor, percentile: float) -> Tensor:
    """All features times exp(sum / sum of the largest) (Xu et al., ICLR 2024).

    Example:
        >>> import torch
        >>> scale(torch.tensor([[1.0, 1.0]]), 50)
        tensor([[7.3891, 7.3891]])
    """
    k = kept_features(features.shape[1], percentile)
    return features * _ratio(features, features.topk(k, dim=1).values).exp()


def _ratio(whole: Tensor, part: Tensor) -> Tensor:
    """Σ whole / Σ part of each row, [N, 1]; 1 where there is nothing to divide by.

    A network may be silent on an input: all of its features are 0, and stay so.
    """
    above, below = (values.sum(dim=1, keepdim=True) for values in (whole, part))
    return torch.where(below == 0, 1.0, above / below)
