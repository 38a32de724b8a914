"""Rows in blocks, so that float64 work on many logits stays in bounded memory, or in the cache."""

from collections.abc import Iterator

import torch

__all__ = ["cached_blocks", "row_blocks"]

_NUMBERS = 1 << 22  # numbers in one block: 32 MB of float64
_CACHED = 1 << 18  # 2 MB: what several operations one after another find in the cache of a CPU


def row_blocks(n: int, row_size: int) -> Iterator[slice]:
    """Slices that cover n rows of `row_size` numbers each, a bounded number at a time.

    Example:
        >>> list(row_blocks(3, 1 << 22))
        [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)]
    """
    return _blocks(n, row_size, _NUMBERS)


def cached_blocks(n: int, row_size: int, device: torch.device) -> Iterator[slice]:
    """Smaller ones, for work number by number, which waits for memory where that is not near.

    A GPU has other memory, and every operation costs it a start: its blocks stay large.

    Example:
        >>> [part.stop for part in cached_blocks(3, 1 << 17, torch.device("cpu"))]
        [2, 3]
    """
    return _blocks(n, row_size, _CACHED if device.type == "cpu" else _NUMBERS)


def _blocks(n: int, row_size: int, numbers: int) -> Iterator[slice]:
    rows = max(1, numbers // max(1, row_size))
    for first in range(0, n, rows):
        yield slice(first, min(n, first + rows))
