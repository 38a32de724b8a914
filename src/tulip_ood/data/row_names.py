"""The paths that a parquet or npz file gives its rows, read without the images."""

import zipfile
from typing import Any

import numpy as np

from tulip_ood.errors import DataError

__all__ = ["row_names"]


def row_names(file: str) -> list[str | None]:
    """Every row's path: parquet's `image.path`, or the array `path` of an npz file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = str(pathlib.Path(folder, "set.npz"))
        ...     np.savez(file, x=np.zeros((2, 8, 8, 3), np.uint8), path=["a/1.png", "a/2.png"])
        ...     row_names(file)
        ['a/1.png', 'a/2.png']
    """
    names = _of_npz(file) if file.lower().endswith(".npz") else _of_parquet(file)
    if names is None:
        raise DataError(
            f"the rows of {file} have no paths, so a list cannot choose among them: give the "
            f'column image.path (npz: an array path), or set "list": "none" for all rows'
        )
    return names


def _of_npz(file: str) -> list[str | None] | None:
    try:
        with open(file, "rb") as opened:
            held = np.load(opened, allow_pickle=False)
            names = held.get("path")
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{file} is not an npz file, or it is damaged: {error}") from error
    return None if names is None else [str(name) for name in names]


def _of_parquet(file: str) -> list[str | None] | None:
    import pyarrow as pa  # takes a while to load, and is not there on every machine
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            column = _path_column(opened.schema_arrow)
            if column is None:
                return None
            names: list[str | None] = []
            for batch in opened.iter_batches(columns=[column]):
                names += batch.column(0).field("path").to_pylist()
            return names
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file} is not a parquet file, or it is damaged: {' '.join(str(error).split())[:200]}"
        ) from error


def _path_column(schema: Any) -> str | None:
    """The inner column alone: the images beside it are not read."""
    import pyarrow as pa

    for name in ("image", "img"):
        if name in schema.names:
            kind = schema.field(name).type
            if pa.types.is_struct(kind) and kind.get_field_index("path") >= 0:
                return f"{name}.path"
    return None
