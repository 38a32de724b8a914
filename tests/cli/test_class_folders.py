"""Class folders of other names than the network's classes, as ImageNet's are (n01440764, …)."""

import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tulip_ood.cli.options import choose_preprocess
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.saving import read_header
from tulip_ood.models import spec as specs

from .conftest import COLOURS, PREPARED, Tulip

WNIDS = ("n01", "n02", "n03")
MODEL = ["--model", "tulip_tiny:make"]
FOLDERS = "class folders do not fit 3 outputs"


@pytest.fixture
def renamed(project: Path, tmp_path: Path) -> Path:
    """The images of the project, in folders whose sorted order is that of the outputs."""
    for part in ("val", "test"):
        for colour, wnid in zip(COLOURS, WNIDS, strict=True):
            shutil.copytree(project / part / colour, tmp_path / part / wnid)
    return tmp_path


@pytest.fixture
def with_names(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Networks know the names of their outputs, as torchvision's do, and how images are made."""
    names = ("sky", "grass", "blood")
    plain = specs.load_model

    def load(spec: str, *, trust: bool = False) -> specs.LoadedModel:
        found = plain(spec, trust=trust)
        prepared = Preprocess(8, 8, (0.5,) * 3, (0.25,) * 3)
        return specs.LoadedModel(found.module, prepared, names, found.spec, found.reopens)

    monkeypatch.setattr(specs, "load_model", load)
    return names


def labels_of(table: Path) -> list[int | None]:
    found: list[int | None] = pq.read_table(table)["label"].to_pylist()
    return found


def test_calibrate_and_score(tulip: Tulip, renamed: Path, with_names: tuple[str, ...]) -> None:
    detector, table = renamed / "d.safetensors", renamed / "s.parquet"
    base = ["calibrate", "tulip_tiny:make", "--method", "msp", "--out", detector]
    result = tulip(*base, "--data", renamed / "val")
    assert result.exit_code == 0, result.output
    assert "numbered in sorted order: n01 is 'sky', …, n03 is 'blood'" in result.stderr
    assert read_header(detector)["classes"] == list(with_names)

    result = tulip("score", detector, renamed / "test", "--out", table, *MODEL)
    assert result.exit_code == 0, result.output
    assert "numbered in sorted order" in result.stderr
    assert labels_of(table) == [0] * 20 + [1] * 20 + [2] * 20

    shutil.rmtree(renamed / "test" / "n01")
    base = ["score", detector, renamed / "test", "--out", table, "--overwrite", *MODEL]
    result = tulip(*base)
    assert result.exit_code == 0, result.output
    assert f"no labels are written: 2 {FOLDERS}" in result.stderr
    assert set(labels_of(table)) == {None}

    (renamed / "names.txt").write_text("\n".join(WNIDS))
    assert tulip(*base, "--classes", renamed / "names.txt").exit_code == 0
    assert labels_of(table) == [1] * 20 + [2] * 20


def test_folders_with_the_names_of_the_classes(
    tulip: Tulip, renamed: Path, with_names: tuple[str, ...]
) -> None:
    """Sorted they would be blood, grass, sky."""
    for place in ("val", "test"):
        for wnid, name in zip(WNIDS, with_names, strict=True):
            (renamed / place / wnid).rename(renamed / place / name)
    detector, table = renamed / "d.safetensors", renamed / "s.parquet"
    base = ["calibrate", "tulip_tiny:make", "--method", "msp", "--out", detector]
    result = tulip(*base, "--data", renamed / "val")
    assert result.exit_code == 0, result.output
    assert "sorted order" not in result.stderr
    shutil.rmtree(renamed / "test" / "grass")
    (renamed / "test" / "zebra").mkdir()
    shutil.copy(renamed / "test" / "sky" / "000.png", renamed / "test" / "zebra")
    assert tulip("score", detector, renamed / "test", "--out", table, *MODEL).exit_code == 0
    assert labels_of(table) == [2] * 20 + [0] * 20 + [None]

    (renamed / "val" / "grass").rename(renamed / "val" / "gras")
    result = tulip(*base, "--data", renamed / "val")
    assert result.exit_code == 2
    assert "50 of 150 inputs" in result.stderr


@pytest.mark.usefixtures("with_names")
def test_too_few_folders_for_the_names(tulip: Tulip, renamed: Path) -> None:
    shutil.rmtree(renamed / "val" / "n02")
    base = ["calibrate", "tulip_tiny:make", "--out", renamed / "d", "--data", renamed / "val"]
    result = tulip(*base)
    assert result.exit_code == 2
    assert f"2 {FOLDERS}, and none has the name of one of the classes" in result.stderr
    assert "--classes" in result.stderr


def test_too_few_folders_for_a_network_that_has_no_names(tulip: Tulip, renamed: Path) -> None:
    """How many outputs it has shows when it runs."""
    shutil.rmtree(renamed / "val" / "n02")
    out = renamed / "d.safetensors"
    base = ["calibrate", "tulip_tiny:make", "--data", renamed / "val", "--out", out, *PREPARED]
    result = tulip(*base, "--method", "msp")
    assert result.exit_code == 2
    assert f"2 {FOLDERS} (n01, n03): give the names" in result.stderr
    assert not out.exists()
    (renamed / "names.txt").write_text("\n".join(WNIDS))
    result = tulip(*base, "--method", "msp", "--classes", renamed / "names.txt")
    assert result.exit_code == 0, result.output
    assert read_header(out)["classes"] == list(WNIDS)


def test_compare_numbers_all_folders_alike(tulip: Tulip, renamed: Path) -> None:
    """Test data without the first class: sorted by themselves, the others would move up."""
    shutil.rmtree(renamed / "test" / "n01")
    base = ["compare", "tulip_tiny:make", "--methods", "msp", "--ood", "ood", *PREPARED]
    base += ["--id-test", renamed / "test", "--json", renamed / "found.json", "--resamples", "20"]
    result = tulip(*base, "--id-val", renamed / "test")
    assert result.exit_code == 2
    assert f"2 {FOLDERS}" in result.stderr
    result = tulip(*base, "--id-val", renamed / "val")
    assert result.exit_code == 0, result.output
    found = re.findall(r'"accuracy": ([0-9.]+)', (renamed / "found.json").read_text())
    assert found
    assert min(map(float, found)) > 0.5  # moved up by one, labels would be right by chance alone


def test_mean_and_std_of_the_user_change_nothing_else() -> None:
    known = Preprocess(256, 224, (0.5,) * 3, (0.5,) * 3, "bicubic", True, "down")
    found = choose_preprocess(
        known, images=True, resize=None, crop=None, mean="0.1,0.2,0.3", std="0.4,0.4,0.4", spec="x"
    )
    expected = Preprocess(256, 224, (0.1, 0.2, 0.3), (0.4,) * 3, "bicubic", True, "down")
    assert found == expected
