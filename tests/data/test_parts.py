"""Parts: whole or not there, never of two runs, joined without losing a row."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tulip_ood.data import parts as module
from tulip_ood.data.lock import locked
from tulip_ood.data.parts import Parts, written_manifest
from tulip_ood.errors import DataError

SCHEMA = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("path", pa.string())])


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path / "out.parquet", SCHEMA, {"seed": 0, "inputs": {"rows": 10}}, 10, 4)
    made.prepare()
    return made


def fill(parts: Parts, *indices: int) -> None:
    for index in indices or range(len(parts)):
        parts.write(index, [{"row": i, "path": f"{i}"} for i in parts.range_of(index)])


def test_joined_in_order_and_stamped(parts: Parts) -> None:
    fill(parts, 2, 0, 1)
    parts.merge()
    assert pq.read_table(parts.out)["row"].to_pylist() == list(range(10))
    assert written_manifest(parts.out) == parts.manifest
    assert parts.finished()
    assert sorted(os.listdir(parts.out.parent)) == ["out.parquet"]


def test_row_groups_are_joined_without_holding_everything(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROW_GROUP", 4)
    fill(parts)
    parts.merge()
    file = pq.ParquetFile(parts.out)
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [4, 4, 2]


def test_what_is_there_is_kept_and_what_is_damaged_is_made_again(parts: Parts) -> None:
    fill(parts)
    parts.path_of(1).write_bytes(parts.path_of(1).read_bytes()[:-5])
    parts.path_of(2).unlink()
    (parts.folder / "part-00000002.parquet.77.partial").write_bytes(b"half")
    parts.check()
    parts.prepare()
    assert parts.missing() == [1, 2]
    assert not list(parts.folder.glob("*.partial"))


def test_a_part_with_too_few_rows_is_not_written(parts: Parts) -> None:
    with pytest.raises(DataError, match="lacks rows"):
        parts.write(0, [{"row": 0, "path": "0"}])
    assert parts.missing() == [0, 1, 2]


def test_parts_of_another_run_are_refused_and_named(parts: Parts) -> None:
    fill(parts, 0)
    other = replace(parts, manifest={"seed": 1, "inputs": {"rows": 10}})
    with pytest.raises(DataError, match=r"another run \(seed differ\)"):
        other.check()
    other.prepare()  # what --overwrite does
    assert other.missing() == [0, 1, 2]


def test_an_output_of_another_run_or_of_nobody_is_refused(parts: Parts) -> None:
    fill(parts)
    parts.merge()
    with pytest.raises(DataError, match="inputs differ"):
        replace(parts, manifest={"seed": 0, "inputs": {"rows": 11}}).check()
    parts.out.write_text("my notes")
    with pytest.raises(DataError, match="not ours"):
        parts.check()


def test_nothing_that_is_not_ours_is_removed(parts: Parts) -> None:
    (parts.folder / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="not ours"):
        replace(parts, manifest={"seed": 1}).prepare()
    assert (parts.folder / "notes.txt").read_text() == "mine"


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "out.lock")
    mine = rf"process {os.getpid()}\) is writing out"
    with locked(path, "out"):
        with pytest.raises(DataError, match=mine), locked(path, "out"):
            pass
        assert os.path.exists(path)
    assert not os.path.exists(path)
    with locked(path, "out"):
        pass


def test_a_lock_on_a_full_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = str(tmp_path / "out.lock")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"out cannot be written: No space"), locked(path, "out"):
        pass
    assert not os.path.exists(path)


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "out.lock")
    code = "import os, sys; from tulip_ood.data.lock import locked; import signal\n"
    code += "with locked(sys.argv[1], 'out'): os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    assert os.path.exists(path)
    with locked(path, "out"):
        assert Path(path).read_text() == f"{os.getpid()}\n"


def test_left_in_parts(parts: Parts) -> None:
    apart = replace(parts, partitioned=True)
    fill(apart)
    assert not apart.finished()
    apart.merge()
    assert apart.finished()
    assert not parts.finished()
    assert pq.read_table(apart.out)["row"].to_pylist() == list(range(10))
    assert not apart.folder.exists()
    apart.check()
    other = replace(apart, manifest={"seed": 1})
    with pytest.raises(DataError, match="from another run"):
        other.check()
    other.prepare()  # as --overwrite does
    fill(other)
    other.merge()
    assert other.finished()


def test_killed_while_parts_become_the_output(parts: Parts) -> None:
    apart = replace(parts, partitioned=True)
    fill(apart)
    (apart.folder / "manifest.json").rename(apart.folder / "_manifest.json")
    apart.check()
    apart.prepare()
    assert apart.missing() == []
    apart.merge()
    assert apart.finished()


def test_a_part_with_the_rows_of_another_is_found(parts: Parts) -> None:
    fill(parts)
    parts.path_of(1).write_bytes(parts.path_of(0).read_bytes())
    with pytest.raises(DataError, match="does not hold its rows"):
        parts.merge()
    assert parts.missing() == [1]


def test_a_folder_that_cannot_be_replaced_is_refused_before_the_work(parts: Parts) -> None:
    apart = replace(parts, partitioned=True)
    apart.out.mkdir()
    (apart.out / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"not ours \(notes.txt\)"):
        apart.prepare()  # as --overwrite does
    assert (apart.out / "notes.txt").read_text() == "mine"


def test_a_full_disk_says_what_is_kept(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(parts, 0)

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(DataError, match="part-00000001.*No space left.*is kept: run the same"):
            fill(parts, 1)
    assert parts.missing() == [1, 2]
    assert sorted(os.listdir(parts.folder)) == ["manifest.json", "part-00000000.parquet"]


def test_what_is_kept_is_known_without_reading_it(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(parts, 0, 2)
    monkeypatch.setattr(Parts, "_table", None)
    assert parts.kept == 6
    parts.clear()
    assert parts.kept == 0


def test_an_output_whose_name_is_no_text(tmp_path: Path) -> None:
    parts = Parts(tmp_path / os.fsdecode(b"\xff.parquet"), SCHEMA, {"seed": 0}, 10, 4)
    parts.prepare()
    fill(parts)
    parts.merge()
    assert parts.finished()
    with open(parts.out, "rb") as table:
        assert pq.read_table(table)["row"].to_pylist() == list(range(10))
