"""Files of weights: OpenOOD's, found out by their shapes; ours, with dropout where it was."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from tulip_ood.detectors.registry import make
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.networks import NETWORKS, resolve
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.models.resnet224 import ResNet18, ResNet50
from tulip_ood.models.spec import load_model, may_reopen
from tulip_ood.models.training import TrainingRecipe, train
from tulip_ood.network.files import save_tensors


def made(build: Any, classes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net: nn.Module = build(classes)
    return net


# ------------------------------------------------------------------------- OpenOOD


@pytest.mark.parametrize("build", [ResNet18Small, ResNet18, ResNet50])
@pytest.mark.parametrize("wrapped", [False, True])
def test_openood_checkpoints_say_what_they_are(tmp_path: Path, build: Any, wrapped: bool) -> None:
    net = made(build, 7)
    state = net.state_dict()
    if wrapped:  # by DataParallel, in half precision, in a dictionary
        state = {f"module.{n}": t.half() if t.is_floating_point() else t for n, t in state.items()}
    torch.save({"state_dict": state} if wrapped else state, tmp_path / "best.ckpt")
    spec = f"openood:{tmp_path / 'best.ckpt'}"
    loaded = load_model(spec)
    assert type(loaded.module) is build
    assert loaded.module.fc.out_features == 7
    assert (loaded.preprocess, loaded.reopens, loaded.module.training) == (None, False, False)
    assert not may_reopen(spec)
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    torch.testing.assert_close(
        loaded.module.conv1.weight, net.conv1.weight, rtol=0, atol=1e-3 if wrapped else 0
    )


def test_the_names_are_those_of_openood() -> None:
    small = set(ResNet18Small(10).state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer4.1.conv2.weight", "fc.bias"} <= small
    assert {n.split(".", 2)[2] for n in small if "shortcut" in n and n.startswith("layer2")} == {
        "shortcut.0.weight",
        *(f"shortcut.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
        "shortcut.1.num_batches_tracked",
    }
    large = set(ResNet18(200).state_dict())
    assert {n.replace("downsample", "shortcut") for n in large} == small
    deep = ResNet50(1000).state_dict()
    assert {"layer1.0.downsample.0.weight", "layer3.5.bn3.bias"} <= set(deep)
    assert "layer1.1.downsample.0.weight" not in deep
    assert deep["layer4.0.conv2.weight"].shape == (512, 512, 3, 3)


def test_the_small_and_the_large_network_halve_where_they_should() -> None:
    for net, side in ((ResNet18(3), 7), (ResNet50(3), 7)):
        seen: list[tuple[int, ...]] = []
        net.layer4.register_forward_hook(lambda m, i, o, seen=seen: seen.append(o.shape[2:]))
        net.eval()(torch.zeros(1, 3, 224, 224))
        assert seen == [(side, side)]


class Opens:
    """What a pickle must not be able to do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("opened",)


def test_openood_checkpoints_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = made(ResNet18Small, 3).state_dict()
    short = {n: t for n, t in state.items() if not n.startswith("layer3")}
    headless = {n: t for n, t in state.items() if not n.startswith("fc")}
    for content, words in (
        (Opens(), "not opened: it is damaged, or holds more than tensors"),
        ([1, 2], "holds no state dict .* but a list"),
        ({"epoch": 3}, r"no state dict .*under 'state_dict'\) but a dict with epoch \(int\)"),
        ({"model": state}, r"no state dict .* but a dict with model \(OrderedDict\)"),
        ({"a.weight": torch.ones(1)}, r"none of OpenOOD's.*1 tensor, first a\.weight"),
        ({}, "0 tensors, first none"),
        (headless, r"no last layer fc\.weight"),
        (short, "looks like resnet18_32x32 with 3 classes, but does not fit"),
    ):
        torch.save(content, "x.ckpt")
        with pytest.raises(FileFormatError, match=words):
            load_model("openood:x.ckpt")
    Path("x.ckpt").write_bytes(b"nonsense")
    with pytest.raises(FileFormatError, match="x.ckpt is not opened"):
        load_model("openood:x.ckpt")
    with pytest.raises(FileFormatError, match="there is no file y.ckpt"):
        load_model("openood:y.ckpt")
    with pytest.raises(InputError, match="opens as openood:x.ckpt"):
        load_model("x.ckpt")
    assert not Path("opened").exists()


# ------------------------------------------------------------------------ dropout


def about(**more: str) -> dict[str, str]:
    return {"arch": "resnet18_32x32", "classes": "3", "mean": "0,0,0", "std": "1,1,1", **more}


@pytest.mark.filterwarnings("ignore::tulip_ood.errors.TulipWarning")  # few inputs, bad guesses
def test_dropout_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    state = made(ResNet18Small, 3).state_dict()
    save_tensors(path, state, about(dropout="0.25"))
    loaded = load_model(str(path))
    assert isinstance(loaded.module.dropout, nn.Dropout)
    assert loaded.module.dropout.p == 0.25
    x, y = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40)
    scores = make("mcd", loaded.module, n_samples=2).fit([(x, y % 3)]).score(x[:3])
    assert scores.isfinite().all()
    for none in (about(), about(dropout="0.0")):
        save_tensors(path, state, none)
        plain = load_model(str(path)).module
        assert isinstance(plain.dropout, nn.Identity)
        with pytest.raises(ModelError, match="dropout"):
            make("mcd", plain).fit([(x, y % 3)])


@pytest.mark.parametrize("rate", ["1", "-0.1", "nan", "much"])
def test_dropout_that_cannot_be(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "net.safetensors"
    save_tensors(path, made(ResNet18Small, 3).state_dict(), about(dropout=rate))
    with pytest.raises(FileFormatError, match="does not fit its own metadata"):
        load_model(str(path))


def test_a_trained_network_opens_as_it_was(tmp_path: Path) -> None:
    x, y = torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    net = ResNet18Small(3, dropout=0.3)
    path = tmp_path / "net.safetensors"
    recipe = TrainingRecipe(epochs=1, batch_size=4)
    train(net, x, y, val=(x, y), out=path, recipe=recipe, seed=5, device="cpu")
    with safe_open(path, framework="pt") as file:
        found = file.metadata()
    assert (found["arch"], found["dropout"], found["seed"]) == ("resnet18_32x32", "0.3", "5")
    again = load_model(str(path))
    assert again.module.dropout.p == 0.3
    assert again.preprocess is not None
    assert again.preprocess.mean == recipe.mean
    one = torch.ones(1, 3, 32, 32)
    torch.testing.assert_close(again.module(one), net.eval()(one))


@pytest.mark.parametrize(
    ("name", "sides"),
    [("ResNet18Small", (32, 32)), ("resnet18_224x224", (256, 224))],
)
def test_other_names_of_architectures(tmp_path: Path, name: str, sides: tuple[int, int]) -> None:
    build = ResNet18Small if sides[0] == 32 else ResNet18
    path = tmp_path / "net.safetensors"
    save_tensors(path, made(build, 3).state_dict(), about(arch=name))
    loaded = load_model(str(path))
    assert type(loaded.module) is build
    assert loaded.preprocess is not None
    assert (loaded.preprocess.resize, loaded.preprocess.crop) == sides


# --------------------------------------------------------------------- short names


def test_short_names_stand_for_specs(torchvision: Any) -> None:
    assert list(NETWORKS) == [
        *("resnet50-v1", "resnet50-v2", "vit-b-16"),
        *("mobilenet-v3-large", "vgg-16", "regnet-y-16gf"),
    ]
    for name, spec in NETWORKS.items():
        assert resolve(name) == spec
        assert may_reopen(spec)
    for spec in ("a.b:make", "net.safetensors", "openood:x", "timm:x"):
        assert resolve(spec) == spec
    with pytest.raises(InputError, match="do you mean vgg-16"):
        resolve("VGG16")
    with pytest.raises(InputError, match="names no network"):
        load_model("resnet")
    with pytest.raises(InputError, match="end in .safetensors or .pt2"):
        load_model("net.zip")


def test_a_detector_stores_the_spec_and_not_the_short_name(
    torchvision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "net-v1", "torchvision:net@V1")
    loaded = load_model("net-v1")
    assert (loaded.spec, loaded.reopens) == ("torchvision:net@V1", True)
