"""`tulip reproduce` for figures: with a network and images of one's own; wrong use in one line."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


def test_wrong_use_is_said_in_one_line(tulip: Tulip, tmp_path: Path) -> None:
    for arguments, words in (
        (["closeness", "--model", "tulip_tiny:make"], "--model and --data together"),
        (["closeness", "--ood", "ood"], "--model and --data together"),
        (["closeness", "--images", "65"], "64"),
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
