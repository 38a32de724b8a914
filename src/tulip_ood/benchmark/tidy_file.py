"""The long table of a benchmark as a parquet file, with what made it in a JSON file beside it."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tulip_ood.benchmark.tidy import COLUMNS, in_order
from tulip_ood.errors import DataError, FileFormatError, InputError, in_one_line
from tulip_ood.network.files import appear

__all__ = ["environment_file", "read_parquet", "write_parquet"]

_WHOLE_NUMBERS = ("training_seed", "noise_seed", "n_val", "n_train", "n_id", "n_ood", "limit")
_SCHEMA = pa.schema(
    [
        pa.field(
            name,
            pa.float64()
            if name == "value"
            else (pa.int64() if name in _WHOLE_NUMBERS else pa.string()),
        )
        for name in COLUMNS
    ]
)


def environment_file(path: str | os.PathLike[str]) -> Path:
    """Where the versions, the device and the command stand that a table was made with.

    Example:
        >>> environment_file("out/results.parquet").name
        'results.environment.json'
    """
    return Path(path).with_suffix(".environment.json")


def write_parquet(
    rows: Iterable[Mapping[str, Any]],
    path: str | os.PathLike[str],
    environment: Mapping[str, Any],
) -> None:
    """Write a long table; equal rows give equal bytes, in whatever order they come.

    Args:
        rows: What `tidy` returned.
        path: The parquet file; both files appear whole, or none.
        environment: What made it; it goes into a JSON file beside the table, never into it.

    Example:
        >>> import tempfile
        >>> row = dict.fromkeys(COLUMNS) | {"metric": "auroc", "value": 0.9}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_parquet([row], f"{folder}/results.parquet", {"torch": "2.13"})
        ...     read_parquet(f"{folder}/results.parquet") == [row], sorted(os.listdir(folder))
        (True, ['results.environment.json', 'results.parquet'])
    """
    try:
        table = pa.Table.from_pylist(in_order(rows), schema=_SCHEMA)
    except KeyError as missing:
        raise InputError(f"a row of results has no {missing}; give what `tidy` returns") from None
    text = json.dumps(dict(environment), indent=2, sort_keys=True, default=str, ensure_ascii=False)

    def write_both(partial: Path) -> None:
        partial.write_text(text + "\n", encoding="utf-8")
        appear(path, lambda inner: pq.write_table(table, inner))

    appear(environment_file(path), write_both)


def read_parquet(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a long table, in their order.

    Example:
        >>> read_parquet("/no/such/results.parquet")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: there is no file /no/such/results.parquet
    """
    if not Path(path).is_file():
        raise DataError(f"there is no file {os.fspath(path)}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(
            f"{os.fspath(path)} is not a whole parquet file: {in_one_line(error)}"
        ) from error
    if table.schema.names != list(COLUMNS):
        raise FileFormatError(
            f"{os.fspath(path)} is no table of benchmark results: its columns are "
            f"{', '.join(table.schema.names)}; expected {', '.join(COLUMNS)}"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
