"""`tulip train`: a checkpoint that every other command can open; wrong use in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tulip_ood.data.protocol import PROTOCOLS
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.models.spec import load_model

from .conftest import Tulip


@pytest.fixture(scope="module")
def few(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of each class: the network that is trained is a large one for a test."""
    folder = tmp_path_factory.mktemp("few")
    for place in (project / "test").iterdir():
        (folder / place.name).mkdir()
        for path in sorted(place.iterdir())[:2]:
            shutil.copy(path, folder / place.name)
    return folder


def test_a_checkpoint_comes_out(tulip: Tulip, few: Path, tmp_path: Path) -> None:
    out, shown = tmp_path / "net.safetensors", tmp_path / "net.json"
    result = tulip(
        "train", "cifar10", "--data", few, "--val", few, "--out", str(out),
        "--epochs", "1", "--batch-size", "3", "--dropout", "0.5", "--json", str(shown),
        "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "kept epoch 1 of 1" in result.stdout
    model = ResNet18Small(10, dropout=0.5)
    model.load_state_dict(load_file(out))
    assert len(json.loads(shown.read_text())["history"]) == 1
    assert torch.isfinite(model.eval()(torch.zeros(1, 3, 32, 32))).all()
    check_metadata(out, "cifar10")


def test_wrong_use_is_said_in_one_line(tulip: Tulip, tmp_path: Path) -> None:
    out = str(tmp_path / "n.safetensors")
    for arguments, words in (
        (["imagenet", "--data", "test", "--val", "test"], "cifar10, cifar100"),
        (["cifar10", "--data", "ready.npz", "--val", "test"], "normalised already"),
        (["cifar10", "--data", "ood", "--val", "test"], "no label"),
        (
            ["cifar10", "--data", "test", "--val", "test", "--batch-size", "999"],
            "at least one batch",
        ),
    ):
        result = tulip("train", *arguments, "--out", out)
        assert result.exit_code == 2, result.output
        assert words in result.stderr


def test_cifar100_has_a_mean_and_deviation_of_its_own(
    tulip: Tulip, few: Path, tmp_path: Path
) -> None:
    out = tmp_path / "net.safetensors"
    result = tulip(
        "train", "cifar100", "--data", few, "--val", few, "--out", out, "--epochs", "1",
        "--batch-size", "6", "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    check_metadata(out, "cifar100")


def check_metadata(checkpoint: Path, task: str) -> None:
    protocol = PROTOCOLS[task]
    with safe_open(checkpoint, framework="pt") as file:
        about = file.metadata()
    assert about["classes"] == str(protocol.classes)
    assert about["mean"] == ",".join(map(str, protocol.mean))
    assert about["std"] == ",".join(map(str, protocol.std))
    assert load_model(str(checkpoint)).preprocess == protocol.preprocess


def test_help_says_what_dropout_is_for(tulip: Tulip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = tulip("train", "--help")
    assert "--dropout" in result.stdout
    assert "MC-Dropout" in result.stdout
