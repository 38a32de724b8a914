"""Validation data out of a test set that has no lists: a seeded tenth of every class."""

from collections.abc import Sequence

import torch

from tulip_ood.errors import DataError
from tulip_ood.numerics.random import permutation

__all__ = ["balanced_tenth"]


def balanced_tenth(labels: Sequence[int], *, seed: int = 0) -> tuple[list[int], list[int]]:
    """The rows that become validation data, and the others; both in their old order.

    Args:
        labels: The class of every row.
        seed: Decides which.

    Example:
        >>> val, test = balanced_tenth([0] * 10 + [1] * 20)
        >>> len(val), len(test), sorted(i >= 10 for i in val)
        (3, 27, [False, True, True])
    """
    if any(label is None or label < 0 for label in labels):
        raise DataError("ID data without labels cannot be split into validation and test data")
    classes = torch.tensor(labels)
    order = permutation(len(classes), seed=seed, name="split/validation")
    chosen: set[int] = set()
    for number in classes.unique().tolist():
        own = order[classes[order] == number]
        chosen |= set(own[: len(own) // 10].tolist())
    return sorted(chosen), [i for i in range(len(classes)) if i not in chosen]
