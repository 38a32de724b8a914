"""Parts where nothing can be renamed: whole objects, and a manifest that comes last."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tulip_ood.data import remote
from tulip_ood.data.parts import Parts
from tulip_ood.data.remote import find, join
from tulip_ood.data.remote_parts import RemoteParts
from tulip_ood.data.summary import summarise
from tulip_ood.errors import DataError

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("accepted", pa.bool_()),
        pa.field("error", pa.string()),
    ]
)
MANIFEST = {"seed": 0, "inputs": {"rows": 10}}


@pytest.fixture(params=["file", "mock"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteParts]:
    """On a disk, and in pyarrow's file system in memory."""
    remote._connect.cache_clear()  # an empty memory
    root = f"file://{tmp_path}" if request.param == "file" else "mock:///bucket"
    yield RemoteParts(f"{root}/scores", SCHEMA, MANIFEST, 10, 4, True)
    remote._connect.cache_clear()


def fill(parts: Parts, *indices: int) -> None:
    for index in indices or range(len(parts)):
        rows = [{"row": i, "path": f"{i}", "accepted": i > 2} for i in parts.range_of(index)]
        parts.write(index, rows)


def names(parts: RemoteParts) -> list[str]:
    return sorted(parts._names())


def damage(parts: RemoteParts, name: str, keep: int) -> None:
    system, path = find(join(parts.folder, name))
    with system.open_input_file(path) as file:
        content = file.read()
    with system.open_output_stream(path) as file:
        file.write(content[:keep])


def test_the_manifest_comes_last(parts: RemoteParts) -> None:
    parts.check()
    parts.prepare()
    fill(parts)
    assert not parts.finished()
    assert "_manifest.json" not in names(parts)
    parts.merge()
    assert parts.finished()
    whole = [*(f"part-0000000{i}.parquet" for i in range(3)), "_manifest.json"]
    assert names(parts) == sorted(whole)
    found = summarise(parts.out)
    assert (found.rows, found.accepted) == (10, 7)
    system, path = find(parts.folder)
    assert pq.read_table(path, filesystem=system)["row"].to_pylist() == list(range(10))


def test_what_is_there_is_kept_and_what_is_cut_short_is_made_again(parts: RemoteParts) -> None:
    """A put that is not atomic, on a plain file system, leaves half a part at worst."""
    parts.prepare()
    fill(parts)
    damage(parts, "part-00000001.parquet", -5)
    parts._remove("part-00000002.parquet")
    parts.check()
    parts.prepare()
    assert parts.missing() == [1, 2]
    with pytest.raises(DataError, match="does not hold its rows"):
        parts.merge()
    assert not parts.finished()
    fill(parts, 1, 2)
    parts.merge()
    assert parts.finished()


def test_killed_between_the_last_two_steps(parts: RemoteParts) -> None:
    parts.prepare()
    fill(parts)
    parts.merge()
    parts._put("_begun.json", json.dumps(MANIFEST).encode())
    assert parts.finished()
    assert parts.begun()
    parts.tidy()
    assert parts.finished()
    assert parts.missing() == []


def test_another_jobs_table_is_refused_and_replaced_only_if_told(parts: RemoteParts) -> None:
    parts.prepare()
    fill(parts, 0)
    other = replace(parts, manifest={"seed": 1, "inputs": {"rows": 10}})
    with pytest.raises(DataError, match=r"another run \(seed differ\)"):
        other.check()
    fill(parts, 1, 2)
    parts.merge()
    with pytest.raises(DataError, match=r"another run \(seed differ\)"):
        other.check()
    other.prepare()  # as --overwrite does
    assert names(other) == ["_begun.json"]
    assert other.missing() == [0, 1, 2]


def test_a_run_whose_place_is_taken_over_stops(parts: RemoteParts) -> None:
    parts.prepare()
    fill(parts, 0)
    other = replace(parts, manifest={"seed": 1})
    other.prepare()
    with pytest.raises(DataError, match="taken over by another run"):
        fill(parts, 1)
    fill(other)
    # A part that was on its way when the other one took over: it bears another job's hash.
    part = parts.encode(1, [{"row": i, "path": "x", "accepted": True} for i in parts.range_of(1)])
    other._put("part-00000001.parquet", part)
    with pytest.raises(DataError, match="does not hold its rows"):
        other.merge()
    fill(other, 1)
    other.merge()
    assert other.finished()


def test_two_runs_of_one_job_do_no_harm(parts: RemoteParts) -> None:
    twin = replace(parts)
    parts.prepare()
    twin.prepare()
    fill(parts, 0, 1)
    fill(twin, 0, 2)
    assert parts.missing() == []
    parts.merge()
    assert twin.finished()
    fill(twin, 1)  # what it was still at
    twin.merge()
    assert parts.finished()


def test_nothing_that_is_not_ours_is_touched(parts: RemoteParts) -> None:
    parts.prepare()
    parts._put("cat.png", b"an image")
    with pytest.raises(DataError, match=r"not ours \(cat.png\)"):
        parts.check()
    with pytest.raises(DataError, match=r"not ours \(cat.png\)"):
        replace(parts, manifest={"seed": 1}).prepare()
    assert "cat.png" in names(parts)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    parts = RemoteParts(f"file://{tmp_path}/file/scores", SCHEMA, MANIFEST, 10, 4, True)
    with pytest.raises(DataError, match="file/scores cannot be"):
        parts.prepare()
    on_a_file = RemoteParts(f"file://{tmp_path}/file", SCHEMA, MANIFEST, 10, 4, True)
    with pytest.raises(DataError, match=r"(is a file: name a folder|cannot be reached)"):
        on_a_file.check()


def test_a_part_of_another_job_is_found_on_this_machine_too(tmp_path: Path) -> None:
    mine = Parts(tmp_path / "mine", SCHEMA, MANIFEST, 10, 4, True)
    other = Parts(tmp_path / "other", SCHEMA, {"seed": 1}, 10, 4, True)
    for one in (mine, other):
        one.prepare()
        fill(one)
    mine.path_of(1).write_bytes(other.path_of(1).read_bytes())
    assert mine.missing() == [1]
    with pytest.raises(DataError, match="does not hold its rows"):
        mine.merge()
