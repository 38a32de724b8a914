"""`torchvision:NAME@WEIGHTS` with a stand-in: weights, preparation, names, and what is refused."""

import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.spec import load_model

from .conftest import CLASSES, Choices, Transform


def test_the_default_weights_and_others(torchvision: Choices) -> None:
    loaded = load_model("torchvision:net")
    assert loaded.module.fc.weight.unique().tolist() == [7.0]
    assert not loaded.module.training
    assert (loaded.classes, loaded.reopens, loaded.spec) == (CLASSES, True, "torchvision:net")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    assert loaded.preprocess == Preprocess(40, 32, mean, std, "bicubic")
    assert load_model("torchvision:net@V1").preprocess == Preprocess(48, 32, mean, std)


def test_a_photograph_is_prepared_as_the_weights_transform_does(torchvision: Choices) -> None:
    rng = np.random.default_rng(0)
    for height, width in ((71, 90), (64, 64), (301, 77)):
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        for name in ("V1", "V2"):
            ours = load_model(f"torchvision:net@{name}").preprocess
            assert ours is not None
            made = ours.normalise(ours.pixels(np.asarray(photo))[None])[0]
            theirs = getattr(torchvision, name).transforms()(photo)
            torch.testing.assert_close(made, theirs, rtol=0, atol=1e-5)


def test_both_sides_may_be_resized_to_a_square(torchvision: Choices) -> None:
    torchvision.V1.transform = changed(resize_size=[40, 40])  # type: ignore[attr-defined]
    loaded = load_model("torchvision:net@V1")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    assert loaded.preprocess == Preprocess(40, 32, mean, std, squash=True)


def test_weights_may_hold_tensors_only(torchvision: Choices) -> None:
    load_model("torchvision:net@V1")
    asked = torchvision.V1.asked  # type: ignore[attr-defined]
    assert asked == [{"progress": True, "check_hash": True, "weights_only": True}]
    torchvision.V1.get_state_dict()  # type: ignore[attr-defined]
    assert asked[1:] == [{}]  # nothing stays behind in the library


def test_random_weights_are_the_same_every_time(torchvision: Choices) -> None:
    before = torch.random.get_rng_state()
    one, two = (load_model("torchvision:net@none") for _ in range(2))
    assert torch.equal(one.module.fc.weight, two.module.fc.weight)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.classes is None
    assert one.preprocess == load_model("torchvision:net").preprocess
    assert torchvision.V1.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("torchvision:", "names no network"),
        ("torchvision:net@", "names no network"),
        ("torchvision:nett", "do you mean net or nets"),
        ("torchvision:zzz", "has no classifier 'zzz'$"),
        ("torchvision:net@V9", "has the weights V1, V2, none"),
    ],
)
def test_names_that_are_not_there(torchvision: Choices, spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_model(spec)


def test_weights_without_a_last_layer(torchvision: Choices) -> None:
    torchvision.V1.meta["categories"] = None  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="features only"):
        load_model("torchvision:net@V1")


def test_weights_that_cannot_be_had(
    torchvision: Choices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    place = tmp_path / "hub" / "checkpoints" / "net-0123.pth"
    weights = torchvision.V1  # type: ignore[attr-defined]
    for error, expected, words in (
        (OSError("no route"), ModelError, f"no route.*expected in {place} .from https://example"),
        (pickle.UnpicklingError("advice"), FileFormatError, f"{place} is not opened"),
        (RuntimeError("invalid hash"), FileFormatError, f"{place} does not hold.*invalid hash"),
    ):
        weights.fails = error
        with pytest.raises(expected, match=words) as caught:
            load_model("torchvision:net@V1")
        assert "\n" not in str(caught.value)
        assert "advice" not in str(caught.value)


def changed(**changes: Any) -> Transform:
    transform = Transform()
    transform.__dict__.update(changes)
    return transform


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (changed(resize_size=[40, 50]), r"the size is \[40, 50\], not a square"),
        (changed(crop_size=[32, 30]), "the crop is .* not a square"),
        (Transform(interpolation="hamming"), "interpolates by 'hamming'"),
        (changed(mean=[0.5]), "takes 1 channel,"),
        (Transform(resize=30), "a crop of 32 does not fit"),
        (changed(rounding=lambda margin: int(margin) + 3), "of 255 grey levels on average"),
        (changed(rounding=math.floor), "of 255 grey levels on average"),
        (changed(resize_size=[51], rounding=math.floor), "of 255 grey levels on average"),
        (object(), "its transform is a object without resize_size"),
    ],
)
def test_a_transform_that_cannot_be_repeated(
    torchvision: Choices, transform: Any, words: str
) -> None:
    torchvision.V1.transform = transform  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=f"cannot be repeated here.*{words}"):
        load_model("torchvision:net@V1")


def test_no_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(ModelError, match=r"package torchvision: pip install 'tulip-ood\[vision\]'"):
        load_model("torchvision:resnet50")


@pytest.mark.parametrize("spec", ["torchvision:resnet50", "timm:resnet50", "hf:a/b"])
def test_a_torchvision_for_another_torch(broken_torchvision: Path, spec: str) -> None:
    for _ in range(2):  # the second import fails in another way
        with pytest.raises(ModelError, match="built for another torch.*from the same index"):
            load_model(spec)


def test_a_torchvision_that_fails_otherwise(broken_torchvision: Path) -> None:
    (broken_torchvision / "torchvision" / "__init__.py").write_text("import tulip_gone")
    with pytest.raises(ModelError, match=r"importing torchvision\.models failed.*tulip_gone"):
        load_model("torchvision:resnet50")
