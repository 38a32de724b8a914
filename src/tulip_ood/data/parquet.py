"""Parquet in the layout of Hugging Face image sets: `image: struct<bytes, path>`, `label`."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any

import pyarrow as pa

from tulip_ood.data.decoding import Raw
from tulip_ood.data.foreign import check_regular, foreign
from tulip_ood.data.parts import MANIFEST
from tulip_ood.data.remote import folder_of, is_remote, join
from tulip_ood.data.source import NO_LABEL, FileStamp, Label, Row, Shard, Source, Window
from tulip_ood.data.tables import open_table, pieces
from tulip_ood.errors import DataError
from tulip_ood.wording import from_json

__all__ = ["OfScoresError", "Parquet"]

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
_AT_ONCE = 128  # encoded images in memory
_ROWS_A_BYTE = 1000  # rows that repeat one another take hardly any space


class OfScoresError(DataError):
    """A table that `tulip score` wrote: in a folder of images' tables it is none of them.

    Example:
        >>> issubclass(OfScoresError, DataError)
        True
    """


class Parquet(Source):
    """The rows of a parquet file, read a piece at a time.

    The image column holds encoded images: a struct of `bytes` and `path` (where bytes are null, the
    file at `path` is read), or plain binary. A label of −1 or null means "none".

    Args:
        file: The parquet file.
        root: What `path` is relative to where there are no bytes; by default the file's folder.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow.parquet as pq
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = str(pathlib.Path(folder, "set.parquet"))
        ...     table = pa.table({"image": [b"a file's bytes"], "label": [3]})
        ...     pq.write_table(table, file)
        ...     [row.label for row, _ in Parquet(file).read()]
        [3]
    """

    def __init__(self, file: str, root: str | None = None) -> None:
        self.name = file
        self._root = folder_of(file) if root is None else root
        check_regular(file)
        self._stamp = FileStamp.of(file)
        with self._reading(), open_table(file) as opened:
            self._groups = [
                opened.metadata.row_group(i).num_rows for i in range(opened.metadata.num_row_groups)
            ]
            schema = opened.schema_arrow
        if MANIFEST in (schema.metadata or {}):
            raise OfScoresError(f"{file} is a table of scores; expected one of images")
        self._check_rows()
        self._image = self._column(schema, _IMAGE_COLUMNS)
        if self._image is None:
            raise DataError(
                f"{file} has no column {' or '.join(_IMAGE_COLUMNS)}; its columns are "
                f"{', '.join(schema.names)}"
            )
        self._check_image(schema.field(self._image).type)
        self._label = self._column(schema, _LABEL_COLUMNS)
        if self._label is not None:
            kind = schema.field(self._label).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise DataError(
                    f"the column {self._label!r} of {file} holds {kind}, not class numbers"
                )
        self.classes = _class_names(schema, self._label)

    def _reading(self) -> AbstractContextManager[None]:
        return foreign(self.name, "a parquet file")

    def _check_rows(self) -> None:
        """A row count costs a file eight bytes, and us a list of that length."""
        rows, size = sum(self._groups), self._stamp.size
        if any(n < 0 for n in self._groups) or rows > _ROWS_A_BYTE * size:
            raise DataError(f"{self.name} claims {rows:,} rows in {size:,} bytes: it is damaged")
        if not rows:
            raise DataError(f"{self.name} has no rows")

    @staticmethod
    def _column(schema: Any, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in schema.names), None)

    def _check_image(self, kind: Any) -> None:
        inner = kind
        path = pa.string()
        if pa.types.is_struct(kind):
            fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
            inner, path = fields.get("bytes", kind), fields.get("path", path)
        named = pa.types.is_string(path) or pa.types.is_large_string(path)
        named = named or pa.types.is_null(path)  # what pyarrow makes of nothing but None
        if not named or not (pa.types.is_binary(inner) or pa.types.is_large_binary(inner)):
            raise DataError(
                f"the column {self._image!r} of {self.name} holds {kind}; expected encoded images, "
                f"struct<bytes: binary, path: string> or binary"
            )

    def __len__(self) -> int:
        return sum(self._groups)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """The row and its encoded bytes (or a path, where there are none)."""
        end = len(self) if stop is None else min(stop, len(self))
        number, groups = 0, []
        start = None  # the first row of the first row group that is read
        for index, size in enumerate(self._groups):
            if number < end and number + size > first:
                start = number if start is None else start
                groups.append(index)
            number += size
        if start is None:
            return
        columns = [name for name in (self._image, self._label) if name is not None]
        number = start
        for batch in self._pieces(groups, columns):
            images = batch.column(columns[0])
            labels = batch.column(columns[1]) if len(columns) > 1 else None
            for i in range(len(batch)):
                if first <= number < end:
                    raw, path = self._raw(images[i].as_py())
                    label = None if labels is None else _label(labels[i].as_py())
                    yield Row(number, path or f"{self.name}#{number}", label), raw
                number += 1
            if number >= end:
                return

    def _pieces(self, groups: list[int], columns: list[str]) -> Iterator[Any]:
        # Where its rows begin is known of the file as it was: another would be read as this one.
        if FileStamp.of(self.name) != self._stamp:
            raise DataError(
                f"{self.name} was changed meanwhile: put it back, or begin anew (--overwrite)"
            )
        with self._reading():
            yield from pieces(self.name, columns, groups=groups, rows=_AT_ONCE)

    def _raw(self, value: Any) -> tuple[Raw, str | None]:
        if not isinstance(value, dict):
            return value, None
        path = value.get("path")
        if value["bytes"] is None and path:
            # A file must not choose where we connect to: its paths lead below its folder.
            return None if is_remote(path) else join(self._root, path), path
        return value["bytes"], path

    def shard(self, first: int, stop: int) -> Shard:
        """The file's name and a range: whoever gets it reads the file."""
        return Shard(self.name, [Window(self, first, stop)])

    def labels(self) -> Iterator[Label]:
        """Every row's label, from its column alone."""
        if self._label is None:
            yield from repeat(None, len(self))
            return
        for batch in self._pieces(list(range(len(self._groups))), [self._label]):
            yield from map(_label, batch.column(0).to_pylist())

    def files(self) -> Iterator[FileStamp]:
        """The file itself."""
        yield FileStamp.of(self.name)

    def folders(self) -> Iterator[str]:
        """Where files lie whose bytes are not in the table."""
        if not is_remote(self._root):
            yield self._root or os.curdir


def _label(value: Any) -> Label:
    return None if value == NO_LABEL else value


def _class_names(schema: Any, column: str | None) -> tuple[str, ...] | None:
    """The names that Hugging Face keeps in the schema, where they are as expected."""
    try:
        features = from_json(schema.metadata[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None
