"""`tulip export`: what it says before it writes, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import Result

import tulip_ood
from tulip_ood.models.spec import load_model

from .conftest import PREPARED

Tulip = Callable[..., Result]
MODEL = ("--model", "tulip_tiny:make")
pytestmark = pytest.mark.usefixtures("one_registry")


def test_size_and_cost_then_a_file_that_takes_pixels(
    tulip: Tulip, detectors: Path, project: Path, tmp_path: Path
) -> None:
    out, found = tmp_path / "gate.onnx", tmp_path / "gate.json"
    file = detectors / "tulip.safetensors"
    more = ("--preprocess", "--check", "test", "--json", found)
    result = tulip("export", file, "--out", out, *MODEL, *more)
    assert result.exit_code == 0, result.output
    assert "an input costs" in result.stderr
    assert "scores differ by" in result.stdout
    said = json.loads(found.read_text())
    assert said["plan"]["passes"] == 6
    assert said["parity"]["n_inputs"] == 48 + 60
    images = sorted((project / "test" / "red").iterdir())
    pixels = np.stack([np.asarray(Image.open(path)) for path in images])
    answer = tulip_ood.export.load(out)(pixels)
    detector = tulip_ood.load(file, load_model("tulip_tiny:make").module)
    x = ((pixels / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).astype("f4")
    assert answer["label"].tolist() == detector.predict(x).label.tolist()


def test_auto_from_the_command_line(tulip: Tulip, project: Path, tmp_path: Path) -> None:
    file, out, found = (tmp_path / name for name in ("auto.safetensors", "gate.onnx", "gate.json"))
    more = ("--method", "auto", "--samples", "2", *PREPARED)
    fitted = tulip("calibrate", "tulip_tiny:make", "--data", "val", "--out", file, *more)
    assert fitted.exit_code == 0, fitted.output
    result = tulip("export", file, "--out", out, *MODEL, "--preprocess", "--json", found)
    assert result.exit_code == 0, result.output
    assert json.loads(found.read_text())["plan"]["method"] == "auto"
    images = sorted((project / "test" / "red").iterdir())
    pixels = np.stack([np.asarray(Image.open(path)) for path in images])
    detector = tulip_ood.load(file, load_model("tulip_tiny:make").module)
    x = ((pixels / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).astype("f4")
    apart = np.abs(tulip_ood.export.load(out)(pixels)["score"] - detector.score(x).numpy())
    assert apart.max() <= 1e-4 * detector.calibration.spread


def test_wrong_use(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    file = detectors / "msp.safetensors"
    for arguments, why in (
        (("--out", tmp_path / "x.onnx"), "give --model tulip_tiny:make"),
        (("--out", tmp_path / "x.trt", *MODEL), "must end in .onnx or .pt2"),
        (("--out", tmp_path / "no" / "x.onnx", *MODEL), "there is no folder"),
        (("--out", tmp_path / "x.onnx", "--check", "nowhere", *MODEL), "nowhere"),
    ):
        result = tulip("export", file, *arguments)
        assert result.exit_code == 2, result.output
        assert why in result.stderr
    assert list(tmp_path.iterdir()) == []
