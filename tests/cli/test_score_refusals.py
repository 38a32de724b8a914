"""`tulip score`: what it refuses before it scores anything."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

import tulip_ood
from tulip_ood.models.spec import load_model

Tulip = Callable[..., Result]
MODEL = ("--model", "tulip_tiny:make")


def test_where_the_network_may_come_from(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    result = tulip("score", detectors / "msp.safetensors", "test", "--out", out)
    assert result.exit_code == 2
    assert "give --model tulip_tiny:make" in result.stderr
    model = load_model("tulip_tiny:make").module
    x, y = torch.randn(60, 3, 8, 8), torch.randint(3, (60,))
    with pytest.warns(tulip_ood.TulipWarning):
        detector = tulip_ood.detectors.MSP(model).fit([(x, y)])
    python = tmp_path / "python.safetensors"
    detector.save(python)
    result = tulip("score", python, "test", "--out", out)
    assert (result.exit_code, "fitted from Python" in result.stderr) == (2, True)
    result = tulip("score", python, "test", "--out", out, *MODEL)
    assert (result.exit_code, "does not say how images are prepared" in result.stderr) == (2, True)
    assert tulip("score", python, "ready.npz", "--out", out, *MODEL).exit_code == 0
    detector.provenance["model_spec"] = "timm:resnet18"
    detector.save(python)
    result = tulip("score", python, "ready.npz", "--out", tmp_path / "other.parquet")
    assert (result.exit_code, "needs the package timm" in result.stderr) == (2, True)


def test_another_network_is_refused(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--out", out]
    result = tulip(*base, "--model", "tulip_tiny:changed")
    assert result.exit_code == 1
    assert "other weights" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_detector_that_changes_under_way(
    tulip: Tulip, detectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are what the table is of: neither a mixture nor a wrong name for it."""
    from tulip_ood.cluster import job as module

    file = tmp_path / "d.safetensors"
    file.write_bytes((detectors / "msp.safetensors").read_bytes())
    whole = module.describe_inputs

    def meanwhile(source: object) -> object:
        file.write_bytes((detectors / "tulip.safetensors").read_bytes())
        return whole(source)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "describe_inputs", meanwhile)
    result = tulip("score", file, "test", "--out", tmp_path / "x.parquet", *MODEL)
    assert result.exit_code == 1
    assert "was changed a moment ago" in result.stderr
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], "there is no file or folder gone"),
        (["test", "ready.npz"], "cannot go into one run"),
        (["test", "--device", "magic"], "cannot be used here"),
        (["test", "--out", "gone/x.parquet"], "--out: there is no folder gone"),
        (["test", "--out", "scores.csv"], "which such a name hides; name it scores.parquet"),
        (
            ["test/*"],
            "no file or folder test/*: patterns are for the shell, give them with",
        ),
        ([""], "there is no file or folder ''"),
        (
            ["test", "--out", "/proc/x.parquet"],
            "the folder /proc may not be written to: No ",
        ),
        (["test", "--model", "x.pth"], "there is no file x.pth"),
        (["test", "--actors", "4"], "--actors says nothing to --engine local"),
        (["test", "--address", "auto"], "--address says nothing to --engine local"),
        (["test", "--workers", "4", "--engine", "ray"], "--workers says nothing to --engine ray"),
    ],
)
def test_wrong_use(
    tulip: Tulip, detectors: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    base = ["score", detectors / "msp.safetensors", "--out", tmp_path / "x.parquet", *MODEL]
    result = tulip(*base, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
