"""Inputs behind a URI: the rows, labels and reasons of the same inputs behind a path."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tulip_ood.data.batches import batches
from tulip_ood.data.opening import all_class_folders, open_sources
from tulip_ood.data.parts import describe_inputs
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import DataError

PREPARED = Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = ["b.png", "a b.png", "cat/2.png", "cat/1.png", "cat/deep/0.png", "dog/x.png"]
    for name in (*names, ".hidden/1.png", "dog/notes.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(path, format="png")
    (tmp_path / "in" / "cat" / "3.png").touch()
    (tmp_path / "in" / "owl").mkdir()
    (tmp_path / "list.txt").write_text("in/b.png 1\nin/gone.png 0\n")
    np.savez(tmp_path / "x.npz", x=rng.integers(0, 255, (4, 9, 9, 3), dtype=np.uint8))
    (tmp_path / "tables").mkdir()
    encoded = [(tmp_path / "in" / "b.png").read_bytes()] * 3
    for i in range(3):
        table = pa.table({"image": encoded, "label": [i, -1, i]})
        pq.write_table(table, tmp_path / "tables" / f"{i}.parquet", row_group_size=2)
    return tmp_path


@pytest.mark.parametrize("name", ["in", "list.txt", "x.npz", "tables", "tables/1.parquet"])
def test_the_same_rows_as_on_this_machine(place: Path, name: str) -> None:
    """`file://` goes the way of every other file system."""
    here = open_sources([f"{place}/{name}"])
    there = open_sources([f"file://{place}/{name}"])
    assert len(here) == len(there)
    ours, theirs = (list(batches(source, PREPARED, batch_size=2)) for source in (here, there))
    for mine, other in zip(ours, theirs, strict=True):
        assert [f"file://{r.path}" if name[:2] in ("in", "li") else r.label for r in mine.rows] == [
            r.path if name[:2] in ("in", "li") else r.label for r in other.rows
        ]
        assert mine.labels == other.labels
        assert [e.reason for e in mine.errors] == [e.reason for e in other.errors]
        if mine.inputs is not None and other.inputs is not None:
            assert mine.inputs.equal(other.inputs)


def test_classes_and_stamps(place: Path) -> None:
    uri = f"file://{place}/in"
    assert all_class_folders([uri]) == ("cat", "dog", "owl")
    source = open_sources([uri], classes=["dog", "cat"])
    assert list(source.labels()) == [None, None, 1, 1, 1, 1, 0]
    before = describe_inputs(open_sources([uri]))
    os.utime(place / "in" / "b.png", ns=(1, 1))
    assert describe_inputs(open_sources([uri])) != before
    listed = f"file://{place}/list.txt"
    assert [stamp.size for stamp in open_sources([listed]).files()][2] == -1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file:///no/such/folder", "there is no file or folder"),
        ("nonsense://bucket/x", "cannot be opened by pyarrow"),
    ],
)
def test_what_is_not_there(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_sources([name])


def test_a_shard_is_small_and_keeps_its_numbers(place: Path) -> None:
    """Of a folder the paths travel, of a parquet file its name; rows stay the same."""
    import pickle

    names = [f"{place}/in", f"{place}/tables", f"{place}/x.npz"]
    source = open_sources(names)
    whole = [(row.number, row.path, row.label) for row, _ in source.read()]
    assert [number for number, _, _ in whole] == list(range(len(source)))
    for first in range(0, len(source), 4):
        shard = pickle.loads(pickle.dumps(source.shard(first, first + 4)))
        found = [(row.number, row.path, row.label) for row, _ in shard.read()]
        assert found == whole[first : first + 4]
    table = open_sources([f"{place}/tables"]).shard(0, 9)
    picture = (place / "in" / "b.png").read_bytes()
    assert picture not in pickle.dumps(table)
