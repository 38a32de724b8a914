"""Benchmark roots in both layouts: which rows play which role, and what is said of garbage."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tulip_ood.data.parquet import Parquet
from tulip_ood.data.root import NotThereError, Part, Root
from tulip_ood.data.selection import Selected
from tulip_ood.data.source import Chain, ImageFiles, Label, Row, Source
from tulip_ood.errors import DataError, InputError

from .roots import CLASSES, listed_root, parquet_root, write_list, write_parquet, write_sets


@pytest.fixture
def parquets(tmp_path: Path) -> Path:
    return parquet_root(tmp_path)


def names(part: Part) -> list[tuple[str, Label]]:
    return [(os.path.basename(row.path), row.label) for row, _ in part.source.read()]


# ------------------------------------------------------------------------ selection


class Watched(Source):
    """A source that must be read through, and counts how often it was begun."""

    name = "watched"

    def __init__(self, n: int) -> None:
        self.n, self.begun = n, 0

    def __len__(self) -> int:
        return self.n

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Any]]:
        self.begun += 1
        for i in range(first, self.n if stop is None else min(stop, self.n)):
            yield Row(i, f"p{i}", i % 3), i

    def labels(self) -> Iterator[Label]:
        return iter([i % 3 for i in range(self.n)])

    def files(self) -> Iterator[Any]:
        return iter(())


@given(st.sets(st.integers(0, 39)), st.integers(0, 45), st.integers(0, 45))
def test_a_selection_is_what_indexing_gives(chosen: set[int], first: int, stop: int) -> None:
    rows = sorted(chosen)
    files = ImageFiles("x", [f"p{i}" for i in range(40)], [i % 3 for i in range(40)])
    for source in (Watched(40), files, Chain([files])):
        selected = Selected(source, rows)
        expected = [Row(k, f"p{i}", i % 3) for k, i in enumerate(rows)]
        assert [row for row, _ in selected.read()] == expected
        assert [row for row, _ in selected.read(first, stop)] == expected[first:stop]
        assert list(selected.labels()) == [row.label for row in expected]


def test_a_source_is_read_through_once() -> None:
    source = Watched(100)
    assert len(list(Selected(source, range(0, 100, 7)).read())) == 15
    assert source.begun == 1


def test_a_selection_of_a_selection_and_other_labels() -> None:
    inner = Selected(Watched(50), range(0, 50, 5), labels=list("abcdefghij"))
    outer = Selected(inner, [2, 9])
    assert [row for row, _ in outer.read()] == [Row(0, "p10", "c"), Row(1, "p45", "j")]
    assert list(outer.labels()) == ["c", "j"]


@pytest.mark.parametrize(
    ("rows", "labels"), [([3, 2], None), ([1, 1], None), ([-1], None), ([9], None), ([1], [])]
)
def test_rows_that_cannot_be_are_refused(rows: list[int], labels: Any) -> None:
    with pytest.raises(InputError):
        Selected(Watched(9), rows, labels)


# ------------------------------------------------------------------------- sets.json


def test_lists_choose_rows_by_their_paths(parquets: Path) -> None:
    root = Root.open(parquets)
    val, test = root.part("cifar10", "val"), root.part("cifar10", "test")
    assert names(val) == [("0003.png", 3), ("0040.png", 0), ("0093.png", 3)]
    assert len(test) == 97
    assert {row.path for row, _ in val.source.read()}.isdisjoint(
        {row.path for row, _ in test.source.read()}
    )
    assert (val.expected, test.expected, val.name, test.role) == (1_000, 9_000, "cifar10", "test")


def test_ood_rows_have_no_labels_and_their_own_lists(parquets: Path) -> None:
    root = Root.open(parquets)
    assert names(root.part("cifar10", "tin")) == [
        ("1.JPEG", None),
        ("4.JPEG", None),
        ("9.JPEG", None),
    ]
    assert names(root.part("cifar10", "ood_val")) == [("2.JPEG", None), ("8.JPEG", None)]
    # As an OOD set, CIFAR-10 goes by the list of the ID set that it is OOD for.
    outside = root.part("cifar100", "cifar10")
    assert len(outside) == 100
    assert set(outside.source.labels()) == {None}


def test_npz_rows_may_have_paths_too(parquets: Path) -> None:
    part = Root.open(parquets).part("cifar10", "svhn")
    assert [row.path[-5:] for row, _ in part.source.read()] == ["npz#2", "npz#5"]
    assert list(part.source.labels()) == [None, None]
    mnist = Root.open(parquets).part("cifar10", "mnist")
    assert (len(mnist), mnist.stand_in) == (12, "twelve black squares")


def test_without_a_list_a_tenth_of_every_class_is_validation_data(parquets: Path) -> None:
    root = Root.open(parquets)
    val, test = root.part("cifar100", "val"), root.part("cifar100", "test")
    assert sorted(val.source.labels()) == list(range(100))
    assert sorted(test.source.labels()) == sorted(list(range(100)) * 9)
    both = [raw for part in (val, test) for _, raw in part.source.read()]
    assert len(both) == 1000
    assert "tenth" in val.notes[0]
    assert [r for r, _ in val.source.read()] == [
        r for r, _ in Root.open(parquets).part("cifar100", "val").source.read()
    ]


def test_a_val_split_of_its_own_leaves_the_test_file_whole(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [0, 1], ["x", "y"])
    write_parquet(tmp_path / "b.parquet", [0, 1, 2], ["x", "y", "z"])
    write_parquet(tmp_path / "c.parquet", [-1] * 4, ["x"] * 4)
    write_sets(tmp_path, {
        "cifar10": {"val": {"file": "a.parquet"}, "test": {"file": "b.parquet"},
                    "train": {"file": "b.parquet"}},
        "tin": {"val": {"file": "c.parquet"}},
    })  # fmt: skip
    root = Root.open(tmp_path)
    found = {part.role: len(part) for part in root.parts("cifar10")}
    assert found == {"train": 3, "val": 2, "test": 3, "ood_val": 4}


def test_ood_validation_rows_are_never_taken_from_unlisted_test_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "c.parquet", [-1] * 4, ["x"] * 4)
    write_sets(tmp_path, {"tin": {"file": "c.parquet", "list": "none"}})
    root = Root.open(tmp_path)
    assert root.has("cifar10", "tin")
    assert not root.has("cifar10", "ood_val")


def test_shifted_sets_keep_their_labels(parquets: Path) -> None:
    write_parquet(parquets / "c.parquet", [4, 5], ["x", "y"])
    sets = json.loads((parquets / "sets.json").read_text())
    write_sets(parquets, sets | {"cifar10c": {"file": "c.parquet", "stand_in": "two"}})
    assert list(Root.open(parquets).part("cifar10", "cifar10c").source.labels()) == [4, 5]


def test_the_paths_are_read_without_the_images(
    parquets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = pq.ParquetFile.iter_batches

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["columns"])
        return real(self, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    Root.open(parquets).part("cifar10", "test")
    assert ["image.path"] in asked
    assert not any("image" in columns for columns in asked)


def test_which_id_sets_can_be_judged(parquets: Path) -> None:
    root = Root.open(parquets)
    assert root.id_sets() == ("cifar10", "cifar100")
    assert [part.role for part in root.parts("cifar100")] == ["val", "test", "cifar10", "mnist"]
    assert list(root.parts("imagenet")) == []


# -------------------------------------------------------------- OpenOOD's own layout


@pytest.mark.parametrize("inside", ["data", "."])
def test_openoods_own_layout(tmp_path: Path, inside: str) -> None:
    root = Root.open(listed_root(tmp_path, inside))
    found = {part.role: (len(part), set(part.source.labels())) for part in root.parts("cifar10")}
    assert found == {
        "train": (6, {0}), "val": (3, {0}), "test": (5, {0}), "ood_val": (2, {None}),
        "tin": (4, {None}), "cifar10c": (4, {1}),
    }  # fmt: skip
    textures = root.part("imagenet", "textures")
    first = next(iter(textures.source.read()))[0]
    assert first.path.endswith("images_classic/texture/0.png")
    for id_set in ("imagenet", "imagenet200"):
        assert list(root.part(id_set, "imagenet_v2").source.labels()) == [7, 7]


def test_sets_json_goes_before_the_lists(tmp_path: Path) -> None:
    listed_root(tmp_path)
    write_parquet(tmp_path / "a.parquet", [-1] * 9, ["x"] * 9)
    write_sets(tmp_path, {"tin": {"file": "a.parquet"}})
    root = Root.open(tmp_path)
    assert len(root.part("cifar10", "tin")) == 9
    assert len(root.part("cifar10", "test")) == 5


def test_a_list_without_its_images_is_not_there(tmp_path: Path) -> None:
    listed_root(tmp_path)
    write_list(tmp_path / "data/benchmark_imglist/cifar10/test_svhn.txt", [("svhn/0.png", -1)])
    with pytest.raises(NotThereError, match="names 1 image,.*svhn/0.png"):
        Root.open(tmp_path).part("cifar10", "svhn")


# ------------------------------------------------------------------ subsets and hashes


def test_a_limit_draws_a_seeded_subset_in_the_old_order(parquets: Path) -> None:
    part = Root.open(parquets).part("cifar100", "test")
    few = part.limited(50)
    assert len(few) == 50
    assert list(few.source.rows) == sorted(few.source.rows)
    assert list(few.source.rows) == list(part.limited(50).source.rows)
    assert list(few.source.rows) != list(part.limited(50, seed=1).source.rows)
    assert part.limited(10_000) is part
    with pytest.raises(InputError, match="at least 1"):
        part.limited(0)


def test_a_digest_tells_rows_labels_and_contents_apart(parquets: Path) -> None:
    root = Root.open(parquets)
    parts = [*root.parts("cifar10"), *root.parts("cifar100")]
    parts += [part.limited(1) for part in parts if part.name != "mnist"]
    digests = [part.digest() for part in parts]
    shared = [part.name for part in parts].count("mnist") - 1
    assert shared == 1  # the same rows for both ID sets: the same digest
    assert len(set(digests)) == len(digests) - shared
    again = [Root.open(parquets).part("cifar10", "val").digest() for _ in range(2)]
    assert again == [root.part("cifar10", "val").digest()] * 2
    write_parquet(parquets / "ten.parquet", [i % CLASSES for i in range(100)],
                  [f"cifar10/test/{i:04d}.png" for i in range(100)], group=50)  # fmt: skip
    assert Root.open(parquets).part("cifar10", "val").digest() != again[0]


def test_the_digest_of_image_files_follows_size_and_time(tmp_path: Path) -> None:
    root = Root.open(listed_root(tmp_path))
    part = root.part("cifar10", "test")
    before, few = part.digest(), part.limited(2).digest()
    assert before == root.part("cifar10", "test").digest() != few
    image = next(iter(part.source.read()))[1]
    os.utime(str(image), ns=(1, 1))
    assert part.digest() != before


# --------------------------------------------------------------------------- garbage


def test_a_folder_that_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no benchmark root.*sets.json.*benchmark_imglist"):
        Root.open(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        Root.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ("[]", "expected an object"),
        ('{"cifar11": {}}', "'cifar11'.*its sets are cifar10, cifar100"),
        ('{"tin": 3}', "splits train, val, test.*a int"),
        ('{"tin": {}}', "got none"),
        ('{"tin": {"tests": {}}}', "got tests"),
        ('{"tin": {"test": "a.npz"}}', "tin, test must be an object"),
        ('{"tin": {"test": {"list": "none"}}}', "file must name"),
        ('{"tin": {"file": "a.csv"}}', "file must name a .parquet or .npz"),
        ('{"tin": {"file": "a.npz", "list": "all"}}', '"path" or "none", got \'all\''),
        ('{"tin": {"file": "a.npz", "standin": "x"}}', "'standin'; known are file"),
        ('{"tin": {"file": "a.npz", "stand_in": 3}}', "stand_in must be text or null"),
    ],
)
def test_a_sets_file_that_cannot_be_understood(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "sets.json").write_text(text)
    with pytest.raises(DataError, match=words):
        Root.open(tmp_path)


def test_what_is_not_there_is_said(parquets: Path) -> None:
    root = Root.open(parquets)
    with pytest.raises(NotThereError, match=r"places365 \(test\) for cifar10.*no test split"):
        root.part("cifar10", "places365")
    with pytest.raises(NotThereError, match="no list .*imglist/cifar100/test_tin.txt.*none"):
        root.part("cifar100", "tin")
    (parquets / "ten.parquet").unlink()
    with pytest.raises(NotThereError, match="no file .*ten.parquet"):
        root.part("cifar10", "val")
    with pytest.raises(InputError, match="no set of the protocol"):
        root.has("cifar100", "cifar10c")


def test_listed_rows_that_are_missing_are_counted(parquets: Path) -> None:
    lists = parquets / "imglist/cifar10"
    write_list(lists / "test_tin.txt", [("tin/val/1.JPEG", -1), ("gone/1", -1), ("gone/2", -1)])
    part = Root.open(parquets).part("cifar10", "tin")
    assert len(part) == 1
    assert part.notes == ("2 of 3 images in the list are not in the file",)
    write_list(lists / "test_tin.txt", [("gone/1", -1)])
    with pytest.raises(DataError, match="none is in .*gone/1.*tin/val/0.JPEG"):
        Root.open(parquets).part("cifar10", "tin")


def test_a_list_needs_rows_with_paths(parquets: Path) -> None:
    np.savez(parquets / "svhn.npz", x=np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match='have no paths.*"list": "none"'):
        Root.open(parquets).part("cifar10", "svhn")


def test_npz_rows_need_a_path_each(parquets: Path) -> None:
    held = {"x": np.zeros((2, 8, 8, 3), np.uint8), "path": np.array(["svhn/5.png"] * 3)}
    np.savez(parquets / "svhn.npz", **held)
    with pytest.raises(DataError, match="2 rows but 3 paths"):
        Root.open(parquets).part("cifar10", "svhn")


def test_an_npz_root_needs_neither_pyarrow_nor_typer_nor_rich(tmp_path: Path) -> None:
    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "a.npz", x=x, y=y, path=np.array([f"m/{i}" for i in range(40)]))
    write_sets(tmp_path, {"cifar10": {"file": "a.npz"}, "mnist": {"file": "a.npz", "list": "path"}})
    write_list(tmp_path / "imglist/cifar10/test_mnist.txt", [("m/7", -1)])
    script = """
import sys
for name in ("pyarrow", "typer", "rich"):
    sys.modules[name] = None
from tulip_ood.data.checking import check, ready_sets
from tulip_ood.data.corrupted_part import corrupt_part
from tulip_ood.data.root import Root
root = Root.open(sys.argv[1])
corrupt_part(root.part("cifar10", "test"), sys.argv[1] + "/c.npz")
print(*ready_sets(check(root, deep=True)))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "cifar10\n", done.stderr


def test_id_rows_need_labels(parquets: Path) -> None:
    write_parquet(parquets / "hundred.parquet", [0, -1, 200], ["x"] * 3)
    with pytest.raises(DataError, match="2 rows .*without a class from 0 to 99.*None"):
        Root.open(parquets).part("cifar100", "test")


def test_labels_of_list_and_file_that_differ_are_told(parquets: Path) -> None:
    write_list(parquets / "imglist/cifar10/val_cifar10.txt", [("cifar10/test/0003.png", 7)])
    part = Root.open(parquets).part("cifar10", "val")
    assert list(part.source.labels()) == [7]
    assert "list and file differ in 1 label;" in part.notes[0]


def test_a_cut_parquet_file_is_said(parquets: Path) -> None:
    file = parquets / "tin.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(DataError, match="tin.parquet is not a parquet file, or it is cut short"):
        Root.open(parquets).part("cifar10", "tin")


def test_selected_parquet_rows_are_the_same_bytes(parquets: Path) -> None:
    whole = [raw for _, raw in Parquet(str(parquets / "ten.parquet")).read()]
    val = Root.open(parquets).part("cifar10", "val")
    assert [raw for _, raw in val.source.read()] == [whole[i] for i in (3, 40, 93)]
