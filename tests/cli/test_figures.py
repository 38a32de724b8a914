"""`tulip reproduce` for figures: with a network and images of one's own; wrong use in one line."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from tulip_ood.figures.closeness_sides import Sides
from tulip_ood.theory.bound import Closeness

from .conftest import PREPARED, Tulip


def test_closeness_of_a_network_of_ones_own(tulip: Tulip, tmp_path: Path) -> None:
    out = tmp_path / "new" / "figures"
    result = tulip(
        "reproduce", "closeness", "--model", "tulip_tiny:make", "--data", "test",
        "--ood", "odd=ood", "--images", "4", "--out", str(out), *PREPARED,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "A5 holds for" in result.stdout
    assert f"wrote {out / 'closeness.svg'}" in result.stdout
    rows = pq.read_table(out / "closeness.parquet").to_pylist()
    assert [row["group"] for row in rows] == 4 * ["other ID images"] + 4 * ["odd"]


def test_closeness_of_what_was_measured_before(tulip: Tulip, tmp_path: Path) -> None:
    two = Closeness(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
    for name in ("a", "b"):
        Sides(name, 10, 64, {"ID": two}).save(tmp_path / f"{name}.json")
    files = ["--sides", str(tmp_path / "a.json"), "--sides", str(tmp_path / "b.json")]
    result = tulip("reproduce", "closeness", *files, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "b: A5 holds for 1 of 2 inputs of ID" in result.stdout
    assert len(pq.read_table(tmp_path / "out" / "closeness.parquet")) == 4


def test_wrong_use_is_said_in_one_line(tulip: Tulip, tmp_path: Path) -> None:
    for arguments, words in (
        (["closeness", "--model", "tulip_tiny:make"], "--model and --data together"),
        (["closeness", "--ood", "ood"], "--model and --data together"),
        (["closeness", "--images", "65"], "64"),
        (["closeness", "--sides", "nowhere.json"], "nowhere.json"),
        (["closeness", "--sides", "x.json", "--model", "tulip_tiny:make"], "without --model"),
        (["closeness", "--model", "tulip_tiny:make", "--data", "nowhere"], "there is no file"),
        (["bound-regression", "--seed", "-1"], "--seed"),
    ):
        result = tulip("reproduce", *arguments, "--out", str(tmp_path))
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert list(tmp_path.glob("*.png")) == []


def test_without_matplotlib_one_line_says_what_to_install(
    tulip: Tulip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("bound-regression", "bound-classification", "closeness"):
        result = tulip("reproduce", name, "--out", str(tmp_path / "figures"))
        assert result.exit_code == 1
        assert "pip install 'tulip-ood[figures]'" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "figures").exists()
