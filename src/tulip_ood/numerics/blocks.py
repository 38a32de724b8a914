"""Rows in blocks, so that float64 work on many logits stays in bounded memory."""

from collections.abc import Iterator

__all__ = ["row_blocks"]

_NUMBERS = 1 << 22  # numbers in one block: 32 MB of float64


def row_blocks(n: int, row_size: int) -> Iterator[slice]:
    """Slices that cover n rows of `row_size` numbers each, a bounded number at a time.

    Example:
        >>> list(row_blocks(3, 1 << 22))
        [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)]
    """
    rows = max(1, _NUMBERS // max(1, row_size))
    for first in range(0, n, rows):
        yield slice(first, min(n, first + rows))
