"""Parquet files, a piece at a time: what is in memory does not grow with the file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow.parquet as pq

from tulip_ood.data.remote import find, is_remote

__all__ = ["open_table", "pieces"]

_BUFFER = 1 << 20  # bytes of a column that are read at once
_AT_ONCE = 65_536  # rows


@contextmanager
def open_table(name: str) -> Iterator[Any]:
    """A parquet file, on this machine or elsewhere.

    Left alone, Arrow fetches all that will be read before the first row comes out: a lake's file
    would be in memory as a whole. From far away a row group at a time is worth that.

    Args:
        name: A path, or a URI.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(pa.table({"row": [0, 1]}), f"{folder}/a.parquet")
        ...     with open_table(f"{folder}/a.parquet") as table:
        ...         table.metadata.num_rows
        2
    """
    if is_remote(name):
        system, path = find(name)
        with pq.ParquetFile(path, filesystem=system, pre_buffer=True) as table:
            yield table
        return
    # Opened here: a path's name need not be UTF-8, but Arrow insists on it.
    with (
        open(name, "rb", buffering=0) as file,
        pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER) as table,
    ):
        yield table


def pieces(
    name: str,
    columns: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    rows: int = _AT_ONCE,
) -> Iterator[Any]:
    """Record batches of some columns, in order.

    Args:
        name: A path, or a URI.
        columns: Which.
        groups: The row groups to read; by default all.
        rows: In a batch, at most.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(pa.table({"row": [0, 1, 2]}), f"{folder}/a.parquet")
        ...     [len(batch) for batch in pieces(f"{folder}/a.parquet", ["row"], rows=2)]
        [2, 1]
    """
    with open_table(name) as table:
        for group in range(table.metadata.num_row_groups) if groups is None else groups:
            yield from table.iter_batches(rows, row_groups=[group], columns=list(columns))
