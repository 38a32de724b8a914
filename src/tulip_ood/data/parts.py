"""A long table written in parts, so that a run that was killed goes on where it stopped.

Each part holds a fixed range of rows and appears whole or not at all. Beside them lies a manifest
of everything that decides their content: parts of an equal manifest are kept, others are refused.
At the end the parts are joined, and only then does the output appear.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tulip_ood.data.lock import locked
from tulip_ood.data.remote import is_remote, join, opened
from tulip_ood.data.source import Source
from tulip_ood.errors import DataError
from tulip_ood.network.files import appear
from tulip_ood.wording import from_json

__all__ = ["Parts", "describe_inputs", "digest_of_file", "written_manifest"]

MANIFEST = b"tulip.manifest"  # in the schema of a finished table
_JOB = b"tulip.job"  # the hash of the manifest, in every part
FINAL_NOTE = "_manifest.json"
_ROW_GROUP = 65_536


def describe_inputs(source: Source) -> dict[str, Any]:
    """The inputs of a run in short: how many, and a hash over every file's path, size and time.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> describe_inputs(ImageFiles("x", ["a.png"], [None]))["rows"]
        1
    """
    state, files = hashlib.sha256(), 0
    for path, size, mtime_ns in source.files():
        state.update(f"{path}\0{size}\0{mtime_ns}\n".encode("utf-8", "surrogateescape"))
        files += 1
    return {"name": source.name, "rows": len(source), "files": files, "sha256": state.hexdigest()}


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes.

    Example:
        >>> digest_of_file(os.devnull)[:8]
        'e3b0c442'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def written_manifest(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The manifest that a finished table carries; None if it has none.

    Args:
        path: A parquet file, or a folder of parts; the latter may be a URI.

    Example:
        >>> written_manifest(os.devnull) is None
        True
    """
    try:
        if is_remote(str(path)) or os.path.isdir(path):
            with opened(join(str(path), FINAL_NOTE)) as note:
                found = from_json(note.read())
        else:
            with open(path, "rb") as table:
                found = from_json((pq.read_schema(table).metadata or {})[MANIFEST])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Parts:
    """The parts of one table, on this machine; elsewhere it is `remote_parts.RemoteParts`.

    Attributes:
        out: Where the finished table will be.
        schema: Its columns; the first is `row`, counting from 0.
        manifest: What decides its content, as JSON.
        rows: How many rows it will have.
        part_rows: How many a part has.
        partitioned: Whether the parts stay apart: `out` is then a folder of them, for tables that
            are too long for one file.

    Example:
        >>> import tempfile
        >>> schema = pa.schema([pa.field("row", pa.int64(), nullable=False)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = Parts(Path(folder, "x.parquet"), schema, {"seed": 0}, rows=3, part_rows=2)
        ...     parts.prepare()
        ...     for index in parts.missing():
        ...         parts.write(index, [{"row": row} for row in parts.range_of(index)])
        ...     parts.merge()
        ...     pq.read_table(parts.out)["row"].to_pylist()
        [0, 1, 2]
    """

    out: Path | str
    schema: Any
    manifest: dict[str, Any]
    rows: int
    part_rows: int
    partitioned: bool = False

    @property
    def folder(self) -> Path | str:
        """Where the parts are."""
        return self._folder

    @property
    def _out(self) -> Path:
        return Path(self.out)

    @property
    def _folder(self) -> Path:
        return self._out.with_name(self._out.name + ".parts")

    def alone(self) -> AbstractContextManager[None]:
        """Hold what keeps others from writing the same table meanwhile."""
        return locked(f"{self.out}.lock", str(self.out))

    @property
    def _job(self) -> bytes:
        return (
            hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest().encode()
        )

    @property
    def _stamped(self) -> Any:
        return self.schema.with_metadata({MANIFEST: json.dumps(self.manifest, sort_keys=True)})

    def __len__(self) -> int:
        return -(-self.rows // self.part_rows)

    def range_of(self, index: int) -> range:
        """The row numbers of a part."""
        return range(index * self.part_rows, min((index + 1) * self.part_rows, self.rows))

    def name_of(self, index: int) -> str:
        """The name of a part's file."""
        return f"part-{index:08d}.parquet"

    def path_of(self, index: int) -> Path:
        """The file of a part."""
        return self._folder / self.name_of(index)

    # --------------------------------------------------------------------- begin

    def check(self) -> None:
        """Refuse an output or parts that are there already and belong to another run."""
        if self._out.exists() and not self.finished():
            raise self._refusal(self.out, self._of_output())
        # A folder without parts is a run that was killed before it had any.
        if any(self._folder.glob("part-*")) and not self.begun():
            raise self._refusal(self.folder, self._noted())

    def finished(self) -> bool:
        """Whether the output is there already, made from an equal manifest."""
        return self._of_output() == self._as_read()

    def begun(self) -> bool:
        """Whether there is a folder of parts with an equal manifest."""
        return self._noted() == self._as_read()

    def _of_output(self) -> dict[str, Any] | None:
        return written_manifest(self._out) if self._out.is_dir() == self.partitioned else None

    def prepare(self) -> None:
        """Take up the folder of parts, or make it; parts of another run are removed."""
        if self._out.is_dir():  # what cannot be replaced at the end is said at the beginning
            _check_ours(self._out)
        if not self.begun():
            self.clear()
        self._folder.mkdir(exist_ok=True)
        _write(self._note, lambda path: path.write_text(json.dumps(self.manifest, indent=1)))
        for left in self._folder.glob("*.partial"):
            left.unlink()

    def _refusal(self, where: Path | str, other: dict[str, Any] | None) -> DataError:
        if other is None:
            return DataError(f"{where} is there already and not ours: --overwrite replaces it")
        mine = self._as_read()
        keys = [k for k in sorted({*mine, *other}) if mine.get(k) != other.get(k)]
        return DataError(
            f"{where} is from another run ({', '.join(keys)} differ): --overwrite replaces it"
        )

    @property
    def _note(self) -> Path:
        return self._folder / "manifest.json"

    def _noted(self) -> dict[str, Any] | None:
        found = _read_note(self._note)  # or killed between the last two steps of a partitioned run
        return _read_note(self._folder / FINAL_NOTE) if found is None else found

    def _as_read(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(json.dumps(self.manifest))
        return read

    # --------------------------------------------------------------------- parts

    def missing(self) -> list[int]:
        """The parts that are not there, or are damaged."""
        return [index for index in range(len(self)) if not self._is_good(index)]

    @property
    def kept(self) -> int:
        """How many rows are there, by the names of the parts: who stops wants to know it soon."""
        names = self._names()
        return sum(len(self.range_of(i)) for i in range(len(self)) if self.name_of(i) in names)

    def _names(self) -> set[str]:
        """What is in the folder; nothing, if there is none."""
        return set(os.listdir(self._folder)) if self._folder.is_dir() else set()

    def _is_good(self, index: int) -> bool:
        try:
            return self._has_all(index, self._table(index, ["row"]))
        except (pa.ArrowException, OSError, KeyError, ValueError):
            return False

    def _open(self, index: int) -> Any:
        """A part's file, for reading."""
        return open(self.path_of(index), "rb")

    def _table(self, index: int, columns: list[str] | None = None) -> Any:
        """A part as it is there, with the stamp of the job that made it."""
        with self._open(index) as file, pq.ParquetFile(file) as part:
            found = part.read(columns=columns)
            return found.replace_schema_metadata(part.schema_arrow.metadata)

    def _has_all(self, index: int, found: Any) -> bool:
        """Whether a part is of this job, and holds its rows."""
        wanted = self.range_of(index)
        numbers = pa.array(np.arange(wanted.start, wanted.stop))
        ours = (found.schema.metadata or {}).get(_JOB) == self._job
        return ours and bool(found["row"].combine_chunks().equals(numbers))

    def write(self, index: int, rows: list[dict[str, Any]]) -> None:
        """Write a part; it appears whole or not at all."""
        self.put(index, self.encode(index, rows))

    def encode(self, index: int, rows: list[dict[str, Any]]) -> bytes:
        """A part as a file's content: another process can make it, and one alone put it there."""
        if [row["row"] for row in rows] != list(self.range_of(index)):
            raise DataError(f"part {index} of {self.out} lacks rows: the inputs changed meanwhile")
        content = io.BytesIO()
        stamped = self.schema.with_metadata({_JOB: self._job})
        pq.write_table(pa.Table.from_pylist(rows, schema=stamped), content)
        return content.getvalue()

    def put(self, index: int, content: bytes) -> None:
        """Let a part appear, whole or not at all."""
        _write(self.path_of(index), lambda path: path.write_bytes(content))

    # ----------------------------------------------------------------------- end

    def read(self) -> Iterator[Any]:
        """The parts' tables, in order, each with the rows that it should have."""
        for index in range(len(self)):
            table = self._table(index)
            if not self._has_all(index, table):
                raise DataError(
                    f"{self.path_of(index)} does not hold its rows: run the same command again"
                )
            yield table.cast(self.schema)

    def merge(self) -> None:
        """Check that no row is missing or there twice, and let the output appear.

        One table is joined from the parts, which are then removed; of a partitioned one the folder
        gets the output's name.
        """
        if self.partitioned:
            self._seal()
            return
        _write(self._folder / "merged.parquet", self._join)
        (self._folder / "merged.parquet").replace(self._out)
        self.tidy()

    def _seal(self) -> None:
        """The folder of parts becomes the output."""
        self._check_count(sum(len(table) for table in self.read()))
        for left in (*self._folder.glob("*.partial"), *self._folder.glob("merged.parquet")):
            left.unlink()
        if self._out.is_dir():
            _clear(self._out)
        self._out.unlink(missing_ok=True)
        # Readers of a folder of parquet leave out what begins with an underscore.
        self._note.rename(self._folder / FINAL_NOTE)
        self._folder.rename(self._out)

    def clear(self) -> None:
        """Remove the parts' folder, but nothing that is not ours."""
        if self._folder.exists():
            _clear(self._folder)

    def tidy(self) -> None:
        """Remove what a finished table needs no more: a run may be killed before it does that."""
        self.clear()

    def _join(self, path: Path) -> None:
        written = 0
        held: list[Any] = []

        def flush() -> None:
            nonlocal written
            if held:
                table = pa.concat_tables(held).combine_chunks()
                writer.write_table(table.cast(self._stamped), row_group_size=_ROW_GROUP)
                written += len(table)
                held.clear()

        # Opened here: a path's name need not be UTF-8, but Arrow insists on it.
        with open(path, "wb") as file, pq.ParquetWriter(file, self._stamped) as writer:
            for table in self.read():
                held.append(table)
                if sum(map(len, held)) >= _ROW_GROUP:
                    flush()
            flush()
        self._check_count(written)

    def _check_count(self, found: int) -> None:
        if found != self.rows:
            raise DataError(
                f"joining the parts of {self.out} gave {found} rows instead of {self.rows}: run "
                f"the same command again"
            )


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        appear(path, write)
    except DataError:
        raise
    except OSError as error:  # a full disk, say
        raise DataError(
            f"{error.strerror or error}. What is finished is kept: run the same command again to "
            f"go on"
        ) from error


def _read_note(path: Path) -> dict[str, Any] | None:
    try:
        found = from_json(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _ours(folder: Path) -> set[Path]:
    patterns = ("part-*.parquet", "*.partial", "merged.parquet", "*manifest.json")
    return {path for pattern in patterns for path in folder.glob(pattern)}


def _check_ours(folder: Path) -> None:
    strange = sorted(path.name for path in set(folder.iterdir()) - _ours(folder))
    if strange:
        raise DataError(
            f"{folder} holds files that are not ours ({strange[0]}): move them, or write elsewhere"
        )


def _clear(folder: Path) -> None:
    _check_ours(folder)
    for path in _ours(folder):
        path.unlink()
    folder.rmdir()
