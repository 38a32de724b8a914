"""The paths that a parquet or npz file gives its rows, read without the images."""

from typing import Any

from tulip_ood.data.foreign import check_regular, foreign
from tulip_ood.data.npz import read_arrays
from tulip_ood.errors import DataError

__all__ = ["row_names"]


def row_names(file: str) -> list[str | None]:
    """Every row's path: parquet's `image.path`, or the array `path` of an npz file.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
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
    names = read_arrays(file, "path").get("path")
    return None if names is None else [str(name) for name in names.reshape(-1)]


def _of_parquet(file: str) -> list[str | None] | None:
    import pyarrow.parquet as pq  # takes a while to load, and is not there on every machine

    check_regular(file)
    with foreign(file, "a parquet file"), pq.ParquetFile(file) as opened:
        column = _path_column(opened.schema_arrow)
        if column is None:
            return None
        names: list[str | None] = []
        for batch in opened.iter_batches(columns=[column]):
            names += batch.column(0).field("path").to_pylist()
        return names


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _path_column(schema: Any) -> str | None:
    """The inner column alone: the images beside it are not read."""
    import pyarrow as pa

    for name in ("image", "img"):
        if name in schema.names:
            kind = schema.field(name).type
            at = kind.get_field_index("path") if pa.types.is_struct(kind) else -1
            if at >= 0 and _is_text(kind.field(at).type):
                return f"{name}.path"
    return None
