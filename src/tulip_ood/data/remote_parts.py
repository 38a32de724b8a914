"""The parts of a table on a file system that cannot rename: an object store, named by a URI.

A part is put there as one object, which appears whole when its upload ends. What says that the
table is complete is a manifest, written last, after every part was read again. There is no lock:
two runs of one job write the same bytes, and a run whose folder was taken over by another job
(`--overwrite`) finds that out before its next part, or at the end, when each part must bear the
hash of its own job.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tulip_ood.data.parts import FINAL_NOTE, Parts
from tulip_ood.data.remote import find, is_remote, join
from tulip_ood.errors import DataError, InputError, in_one_line
from tulip_ood.wording import from_json

__all__ = ["RemoteParts", "parts_at"]

_BEGUN = "_begun.json"
_READERS = 16  # parts that are looked at together
_STORES = ("s3", "gcs", "abfs")  # they have no folders that must be made first


def parts_at(
    out: Path | str,
    schema: Any,
    manifest: dict[str, Any],
    rows: int,
    part_rows: int,
    partitioned: bool = False,
) -> Parts:
    """The parts of a table, here or elsewhere.

    Args:
        out: A path, or a URI that pyarrow knows.
        schema: As for `Parts`, like all that follows.
        manifest: What decides the content.
        rows: How many there will be.
        part_rows: How many a part has.
        partitioned: Whether the parts stay apart; elsewhere they must.

    Example:
        >>> parts_at("s3://bucket/scores", None, {}, 3, 2)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: s3://bucket/scores: one file cannot be put together there: \
leave the table in parts (--partitioned), or write it to this machine and copy it
    """
    if not is_remote(str(out)):
        return Parts(out, schema, manifest, rows, part_rows, partitioned)
    if not partitioned:
        raise InputError(
            f"{out}: one file cannot be put together there: leave the table in parts "
            f"(--partitioned), or write it to this machine and copy it"
        )
    return RemoteParts(out, schema, manifest, rows, part_rows, True)


class RemoteParts(Parts):
    """The parts of one table, behind a URI; they stay apart.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> schema = pa.schema([pa.field("row", pa.int64(), nullable=False)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = RemoteParts(f"file://{folder}/x", schema, {"seed": 0}, 3, 2, True)
        ...     parts.prepare()
        ...     for index in parts.missing():
        ...         parts.write(index, [{"row": row} for row in parts.range_of(index)])
        ...     parts.merge()
        ...     parts.finished(), parts.begun()
        (True, False)
    """

    @property
    def folder(self) -> str:
        """Where the parts are: in their place from the beginning."""
        return str(self.out)

    def alone(self) -> AbstractContextManager[None]:
        """There is no lock there; see above for what takes its place."""
        return nullcontext()

    # --------------------------------------------------------------------- begin

    def check(self) -> None:
        """Refuse a folder that holds another run's parts, or something else."""
        if self.finished():
            return
        done, begun = self._of_output(), self._noted()
        names = self._names()
        if done is not None:
            raise self._refusal(self.out, done)
        if any(map(_is_part, names)) and not self.begun():
            raise self._refusal(self.out, begun)
        self._check_ours(names)

    def prepare(self) -> None:
        """Take up the folder, or make it; parts of another run are removed."""
        if not self.begun():
            self.clear()
        system, path = find(self.folder)
        if system.type_name not in _STORES:
            with _told(self.out, "cannot be made"):
                system.create_dir(path, recursive=True)
        self._put(_BEGUN, json.dumps(self.manifest, indent=1).encode())

    def clear(self) -> None:
        """Remove another run's table, but nothing that is not ours; its completeness first."""
        names = self._names()
        self._check_ours(names)
        for name in sorted(names, key=lambda name: (name != FINAL_NOTE, name == _BEGUN)):
            self._remove(name)

    def tidy(self) -> None:
        """The note of a run that is under way goes; the parts stay."""
        if _BEGUN in self._names():
            self._remove(_BEGUN)

    def _of_output(self) -> dict[str, Any] | None:
        return self._read(FINAL_NOTE)

    def _noted(self) -> dict[str, Any] | None:
        return self._read(_BEGUN)

    def _check_ours(self, names: set[str]) -> None:
        strange = sorted(n for n in names if not _is_part(n) and n not in (FINAL_NOTE, _BEGUN))
        if strange:
            raise DataError(
                f"{self.out} holds files that are not ours ({strange[0]}): move them, or write "
                f"elsewhere"
            )

    # --------------------------------------------------------------------- parts

    def missing(self) -> list[int]:
        """The parts that are not there, or are damaged."""
        names = self._names()
        there = [index for index in range(len(self)) if self.name_of(index) in names]
        with ThreadPoolExecutor(_READERS) as pool:
            good = {
                index
                for index, fine in zip(there, pool.map(self._is_good, there), strict=True)
                if fine
            }
        return [index for index in range(len(self)) if index not in good]

    def put(self, index: int, content: bytes) -> None:
        """Let a part appear, unless another job has taken the folder over."""
        if self.finished():  # by another run of this job
            return
        if not self.begun():
            raise DataError(
                f"{self.out} was taken over by another run meanwhile: this one stops; write to a "
                f"place of its own"
            )
        self._put(self.name_of(index), content)

    def _open(self, index: int) -> Any:
        system, path = find(join(self.folder, self.name_of(index)))
        return system.open_input_file(path)

    # ----------------------------------------------------------------------- end

    def merge(self) -> None:
        """Check that no row is missing or there twice; then the manifest says that it is all."""
        lacking = self.missing()
        if not lacking and self.finished():  # by another run of this job
            return
        if lacking:
            raise DataError(
                f"{join(self.folder, self.name_of(lacking[0]))} does not hold its rows: run the "
                f"same command again"
            )
        more = {name for name in self._names() if _is_part(name)}
        more -= {self.name_of(index) for index in range(len(self))}
        if more or not (self.begun() or self.finished()):
            raise DataError(
                f"{self.out} was written to by another run meanwhile ({', '.join(sorted(more)[:3])}"
                f"): run one at a time"
            )
        self._put(FINAL_NOTE, json.dumps(self.manifest, indent=1).encode())
        self.tidy()

    # ------------------------------------------------------------- the file system

    def _names(self) -> set[str]:
        """What is in the folder; nothing, if there is none."""
        from pyarrow.fs import FileSelector, FileType

        system, path = find(self.folder)
        with _told(self.out, "cannot be reached"):
            entries = system.get_file_info(FileSelector(path, allow_not_found=True))
            if not entries and system.get_file_info(path).type == FileType.File:
                raise DataError(f"{self.out} is a file: name a folder")
        return {entry.base_name for entry in entries if entry.path.rstrip("/") != path}

    def _read(self, name: str) -> dict[str, Any] | None:
        system, path = find(join(self.folder, name))
        try:
            with system.open_input_file(path) as file:
                found = from_json(file.read())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            raise _unreachable(self.out, "cannot be read", error) from error
        return found if isinstance(found, dict) else None

    def _put(self, name: str, content: bytes) -> None:
        system, path = find(join(self.folder, name))
        with _told(self.out, "cannot be written"), system.open_output_stream(path) as file:
            file.write(content)

    def _remove(self, name: str) -> None:
        system, path = find(join(self.folder, name))
        with _told(self.out, "cannot be cleared"):
            system.delete_file(path)


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet")


@contextmanager
def _told(where: object, what: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise _unreachable(where, what, error) from error


def _unreachable(where: object, what: str, error: OSError) -> DataError:
    return DataError(
        f"{where} {what}: {in_one_line(error)}. What is finished is kept: run the same command "
        f"again to go on"
    )
