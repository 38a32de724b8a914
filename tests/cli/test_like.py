"""`tulip calibrate --like OLD`: the same settings for a changed model, and what has changed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

import tulip_ood
from tulip_ood.cli.like import compare
from tulip_ood.detectors.decision import Calibration, Threshold
from tulip_ood.detectors.recipes import recipe_named
from tulip_ood.detectors.saving import read_header
from tulip_ood.models.spec import load_model

Tulip = Callable[..., Result]
PREPARED = ("--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")


@pytest.fixture
def old(tulip: Tulip, tmp_path: Path) -> Path:
    """A detector with settings that are not the defaults."""
    out = tmp_path / "old.safetensors"
    result = tulip(
        "calibrate", "tulip_tiny:make", "--data", "val", "--out", out, "--recipe", "paper",
        "--samples", "3", "--epsilon", "0.01", "--scope", "head", "--seed", "5",
        "--score", "gen", "--false-alarm", "0.2", *PREPARED,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return out


def test_settings_recipe_and_target_are_kept(tulip: Tulip, old: Path, tmp_path: Path) -> None:
    new, found = tmp_path / "new.safetensors", tmp_path / "new.json"
    arguments = ["calibrate", "tulip_tiny:changed", "--data", "val", "--out", new, "--like", old]
    result = tulip(*arguments, "--json", found)
    assert result.exit_code == 0, result.output
    before, after = read_header(old), read_header(new)
    assert before["config"] == after["config"]
    assert before["preprocess"] == after["preprocess"]
    assert before["recipe"] == after["recipe"] == recipe_named("paper").name
    assert after["threshold"]["target"] == 0.2
    assert before["weights_sha256"] != after["weights_sha256"]
    told = json.loads(found.read_text())["comparison"]
    assert told["threshold"] == [before["threshold"]["value"], after["threshold"]["value"]]
    assert told["shared"] == 150
    for line in ("threshold", "false alarms at the old threshold", "coverage", "AURC", "flip"):
        assert line in result.stdout


def test_the_same_model_changes_nothing(tulip: Tulip, old: Path, tmp_path: Path) -> None:
    new, found = tmp_path / "new.safetensors", tmp_path / "new.json"
    arguments = ["calibrate", "tulip_tiny:make", "--data", "val", "--out", new, "--like", old]
    assert tulip(*arguments, "--json", found).exit_code == 0
    told = json.loads(found.read_text())["comparison"]
    assert told["flipped"] == 0.0
    for name in ("threshold", "false_alarms", "coverage", "aurc"):
        assert told[name][0] == told[name][1]
    model = load_model("tulip_tiny:make").module
    x = torch.randn(4, 3, 8, 8)
    scores = [tulip_ood.load(path, model).score(x) for path in (old, new)]
    assert torch.equal(*scores)


def test_other_data_share_nothing(tulip: Tulip, old: Path, tmp_path: Path) -> None:
    arguments = ["calibrate", "tulip_tiny:changed", "--data", "test", "--like", old]
    result = tulip(*arguments, "--out", tmp_path / "new.safetensors")
    assert result.exit_code == 0, result.output
    assert "no calibration inputs are shared" in result.stdout


def test_another_architecture_is_fitted_by_the_same_words(
    tulip: Tulip, old: Path, tmp_path: Path
) -> None:
    """Scope is kept as the user gave it, not as the names of the old network's parameters."""
    new = tmp_path / "new.safetensors"
    arguments = ["calibrate", "tulip_tiny:wider", "--data", "val", "--out", new, "--like", old]
    assert tulip(*arguments).exit_code == 0
    config = read_header(new)["config"]
    assert config["n_samples"] == 3
    assert config["as_given"] == read_header(old)["config"]["as_given"]
    assert config["scope"] != read_header(old)["config"]["scope"]


def test_what_the_user_sets_anew_wins_but_the_method_stays(
    tulip: Tulip, old: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.safetensors"
    arguments = ["calibrate", "tulip_tiny:changed", "--data", "val", "--out", new, "--like", old]
    assert tulip(*arguments, "--samples", "2", "--false-alarm", "0.3").exit_code == 0
    header = read_header(new)
    assert (header["config"]["n_samples"], header["threshold"]["target"]) == (2, 0.3)
    result = tulip(*arguments, "--method", "msp")
    assert result.exit_code == 2
    assert "keeps the method" in result.stderr


@pytest.mark.parametrize("method", ["auto", "tulip&knn"])
def test_parts_of_a_sum_are_told_what_it_is_told(tulip: Tulip, tmp_path: Path, method: str) -> None:
    """Scope in the user's words, and whatever is set anew."""
    first, new = tmp_path / "first.safetensors", tmp_path / "new.safetensors"
    own = ("--samples", "3", "--scope", "head") if method == "auto" else ()
    asked = ("calibrate", "--method", method, "--data", "val", "--seed", "5")
    made = tulip(*asked, "tulip_tiny:make", "--out", first, *own, *PREPARED)
    assert made.exit_code == 0, made.output
    again = ("calibrate", "tulip_tiny:wider", "--data", "val", "--like", first, "--out", new)
    result = tulip(*again, "--seed", "6", *(("--samples", "2") if method == "auto" else ()))
    assert result.exit_code == 0, result.output
    before, after = (read_header(path)["config"] for path in (first, new))
    assert {part["seed"] for part in (after, *after["inner"].values())} == {6}
    noisy, old = after["inner"]["tulip"], before["inner"]["tulip"]
    assert noisy["scope"] != old["scope"]  # of another network, in the same words
    assert noisy["as_given"]["scope"] == old["as_given"]["scope"]
    if method == "auto":
        assert {after["n_samples"], noisy["n_samples"]} == {2}
        assert after["parts"] == before["parts"]


def test_the_comparison_by_hand() -> None:
    ids = tuple(bytes([i]) * 16 for i in range(6))
    wrong = torch.tensor([0.0, 0.0, 0.0, 1.0]).double()
    before = Calibration(torch.arange(4.0).double(), wrong, ids=ids[:4])
    after = Calibration(
        torch.tensor([0.0, 1, 5, 6]).double(),
        torch.zeros(4).double(),
        ids=(ids[3], ids[1], ids[4], ids[0]),
    )
    was, now = (Threshold(v, "false_alarm", 0.25, None, 0.75, "") for v in (2.0, 5.0))
    found = compare((before, was), (after, now))
    assert found.threshold == (2.0, 5.0)
    assert found.false_alarms == (0.25, 0.5)  # at 2.0: one of four then, two of four now
    assert found.coverage == (0.75, 0.75)
    assert (found.shared, found.flipped) == (3, 2 / 3)  # 3: refused → accepted; 0: the other way
