"""What a root holds, against the protocol: complete, stand-in, incomplete, missing, damaged."""

import dataclasses
from pathlib import Path

import pytest

from tulip_ood.data import protocol
from tulip_ood.data.checking import Checked, check, ready_sets
from tulip_ood.data.root import Root
from tulip_ood.errors import InputError

from .roots import listed_root, parquet_root, square, write_list, write_parquet, write_sets


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol as small as the roots here, so that something can be complete."""
    small = protocol.PROTOCOLS["cifar10"]
    counts = {"tin": 3, "cifar100": 900}
    sets = tuple(dataclasses.replace(s, count=counts.get(s.name, s.count)) for s in small.sets)
    ood_val = dataclasses.replace(small.ood_val, count=2)
    small = dataclasses.replace(small, val=3, test=97, ood_val=ood_val, sets=sets)
    monkeypatch.setitem(protocol.PROTOCOLS, "cifar10", small)


def states(folder: Path, *, deep: bool = False) -> dict[str, Checked]:
    return {each.role: each for each in check(Root.open(folder), ["cifar10"], deep=deep)}


def test_every_state_of_a_parquet_root(tmp_path: Path) -> None:
    found = states(parquet_root(tmp_path))
    assert {role: each.state for role, each in found.items()} == {
        "train": "missing", "val": "complete", "test": "complete", "ood_val": "complete",
        "cifar100": "stand-in", "tin": "complete", "mnist": "stand-in", "svhn": "incomplete",
        "texture": "missing", "places365": "missing", "cifar10c": "missing",
    }  # fmt: skip
    assert "more rows than the protocol" in found["cifar100"].detail
    assert found["mnist"].detail == "twelve black squares"
    assert (found["svhn"].n, found["svhn"].expected) == (2, 26_032)
    assert found["texture"].detail == "sets.json has no test split"
    assert found["texture"].published.startswith("https://")
    assert [found[role].group for role in ("val", "ood_val", "tin", "svhn", "cifar10c")] == [
        "id", "ood_val", "near", "far", "shifted",
    ]  # fmt: skip


def test_all_protocols_are_looked_at(tmp_path: Path) -> None:
    found = check(Root.open(parquet_root(tmp_path)))
    assert {each.id_set for each in found} == set(protocol.PROTOCOLS)
    assert len(found) == sum(len(p.roles) for p in protocol.PROTOCOLS.values())
    assert ready_sets(found) == ("cifar10", "cifar100")
    with pytest.raises(InputError, match="no protocol"):
        check(Root.open(tmp_path), ["cifar"])


def test_an_id_set_needs_validation_test_and_ood_data(tmp_path: Path) -> None:
    found = check(Root.open(parquet_root(tmp_path)), ["cifar10"])
    for lacking in ("val", "test"):
        assert ready_sets(each for each in found if each.role != lacking) == ()
    assert ready_sets(each for each in found if each.group in ("id", "ood_val", "shifted")) == ()
    assert ready_sets(each for each in found if each.group != "near") == ("cifar10",)


def test_listed_files_that_are_absent_or_empty_are_damage(tmp_path: Path) -> None:
    listed_root(tmp_path)
    images = tmp_path / "data/images_classic"
    (images / "tin/test/1.png").unlink()
    (images / "tin/test/2.png").write_bytes(b"")
    (images / "tin/val/0.png").write_bytes(b"no picture")
    found = states(tmp_path)
    assert found["tin"].state == "damaged"
    assert found["tin"].detail == (
        "1 are not there and 1 are empty of 4 listed images, for instance "
        "data/images_classic/tin/test/1.png"
    )
    assert found["ood_val"].state == "complete"  # only a deep look decodes
    deep = states(tmp_path, deep=True)
    assert deep["ood_val"].state == "damaged"
    assert deep["ood_val"].detail.startswith("1 of 2 images cannot be read: ")
    assert "no image in a known format" in deep["ood_val"].detail
    assert not deep["ood_val"].usable


def test_a_list_whose_images_are_not_there_at_all_is_missing(tmp_path: Path) -> None:
    listed_root(tmp_path)
    write_list(tmp_path / "data/benchmark_imglist/cifar10/test_svhn.txt", [("svhn/0.png", -1)])
    assert states(tmp_path)["svhn"].state == "missing"


def test_a_cut_parquet_file_and_lost_labels_are_damage(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    file = tmp_path / "tin.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    write_parquet(tmp_path / "ten.parquet", [-1], ["cifar10/test/0003.png"])
    (tmp_path / "imglist/cifar10/val_cifar10.txt").write_text("cifar10/test/0003.png -1\n")
    found = states(tmp_path)
    assert found["tin"].state == found["ood_val"].state == found["val"].state == "damaged"
    assert "cut short" in found["tin"].detail
    assert "need their labels" in found["val"].detail
    assert ready_sets(found.values()) == ()


def test_pages_lost_inside_a_parquet_file_show_in_a_deep_look(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    file = tmp_path / "tin.parquet"
    content = bytearray(file.read_bytes())
    at = content.find(square(9)[:40])
    content[4:at] = bytes(at - 4)  # the footer stays
    file.write_bytes(content)
    assert states(tmp_path, deep=True)["tin"].state == "damaged"


def test_lost_rows_are_told_beside_the_count(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    write_list(tmp_path / "imglist/cifar10/test_tin.txt", [("tin/val/1.JPEG", -1), ("gone", -1)])
    found = states(tmp_path)["tin"]
    assert (found.state, found.n) == ("incomplete", 1)
    assert found.detail == "1 of 2 images in the list are not in the file"


def test_the_same_images_are_decoded_once(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    write_sets(tmp_path, {"mnist": {"file": "mnist.npz"}})
    said: list[tuple[str, int, int]] = []
    root = Root.open(tmp_path)
    check(root, deep=True, progress=lambda what, done, total: said.append((what, done, total)))
    assert said == [("cifar10, mnist", 12, 12)]
