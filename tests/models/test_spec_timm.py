"""`timm:NAME` with a stand-in: its data configuration, its weights, and what is refused."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.spec import load_model

from .conftest import CLASSES, Install, Net, Transform


class Timm:
    """What the stand-in answers."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {
            "input_size": (3, 32, 32),
            "interpolation": "bicubic",
            "mean": (0.4, 0.5, 0.6),
            "std": (0.2, 0.25, 0.3),
            "crop_pct": 0.9,
            "crop_mode": "center",
        }
        self.fails: Exception | None = None
        self.about = SimpleNamespace(hf_hub_id="timm/net.tag", url=None)
        self.num_classes = 3
        self.squashes = False

    def create_model(self, name: str, *, pretrained: bool) -> nn.Module:
        if self.fails is not None:
            raise self.fails
        net = Net()
        if pretrained:
            nn.init.constant_(net.fc.weight, 7.0)
        net.pretrained_cfg = {"label_names": list(CLASSES)}  # type: ignore[assignment]
        net.num_classes = self.num_classes  # type: ignore[assignment]
        return net

    def create_transform(self, **config: Any) -> Transform:
        made = Transform(resize=35, interpolation="bicubic")
        if self.squashes:
            made.resize_size = [35, 35]
        return made


@pytest.fixture
def timm(install: Install) -> Timm:
    made = Timm()
    data = install(
        "timm.data",
        resolve_model_data_config=lambda module: made.config,
        create_transform=made.create_transform,
    )
    install(
        "timm",
        data=data,
        is_model=lambda name: name.partition(".")[0] == "net",
        list_models=lambda: ["net"],
        create_model=made.create_model,
        get_pretrained_cfg=lambda name: made.about,
    )
    return made


def test_pretrained_and_random(timm: Timm) -> None:
    loaded = load_model("timm:net.tag")
    assert loaded.module.fc.weight.unique().tolist() == [7.0]
    assert (loaded.classes, loaded.reopens) == (CLASSES, True)
    # 32 / 0.9 = 35.6, rounded down as timm does
    assert loaded.preprocess == Preprocess(35, 32, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "bicubic")
    one, two = (load_model("timm:net@none") for _ in range(2))
    assert torch.equal(one.module.fc.weight, two.module.fc.weight)
    assert len(one.module.fc.weight.unique()) > 1
    assert (one.classes, one.preprocess) == (None, loaded.preprocess)


def test_both_sides_may_be_resized(timm: Timm) -> None:
    timm.config["crop_mode"] = "squash"
    timm.squashes = True
    squashed = Preprocess(35, 32, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "bicubic", squash=True)
    assert load_model("timm:net").preprocess == squashed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crop_mode": "squash"}, "grey levels on average"),  # the transform does not squash
        ({"crop_mode": "border"}, "it pads"),
        ({"crop_mode": "other"}, "crop_mode is 'other'"),
        ({"input_size": (3, 32, 48)}, "not a square"),
        ({"crop_pct": 1.2}, "does not fit"),
        ({"interpolation": "bilinear"}, "grey levels on average"),
        ({"interpolation": "random"}, "interpolates by 'random'"),
        ({"input_size": (3, 24, 24)}, r"it makes \(3, 32, 32\) of a picture"),
    ],
)
def test_a_configuration_that_cannot_be_repeated(
    timm: Timm, change: dict[str, Any], words: str
) -> None:
    timm.config |= change
    with pytest.raises(ModelError, match=f"cannot be repeated here.*{words}"):
        load_model("timm:net")


def test_names_and_weights_that_are_not_there(timm: Timm) -> None:
    for spec, words in (("timm:", "names no network"), ("timm:nex", "do you mean net?")):
        with pytest.raises(InputError, match=words):
            load_model(spec)
    for text in ("No pretrained weights exist for net", "Invalid pretrained tag (x) for net"):
        timm.fails = RuntimeError(text)
        with pytest.raises(InputError, match="timm:net@none has random ones"):
            load_model("timm:net.x")
    timm.fails = RuntimeError("size mismatch")
    with pytest.raises(FileFormatError, match="do not fit: RuntimeError: size mismatch"):
        load_model("timm:net")
    timm.fails = KeyError("x")
    with pytest.raises(ModelError, match="making it failed: KeyError"):
        load_model("timm:net")


def test_weights_that_cannot_be_downloaded(timm: Timm) -> None:
    timm.fails = OSError("no route")
    with pytest.raises(ModelError, match=r"no route.*models--timm--net\.tag"):
        load_model("timm:net")
    with pytest.raises(ModelError, match="models--me--mine .*hf download me/mine"):
        load_model("timm:hf-hub:me/mine")
    timm.about = SimpleNamespace(hf_hub_id=None, url="https://example.org/a/net-0123.pth")
    with pytest.raises(ModelError, match="checkpoints/net-0123.pth .from https"):
        load_model("timm:net")


def test_a_network_without_a_last_layer(timm: Timm) -> None:
    timm.num_classes = 0
    with pytest.raises(ModelError, match="is no classifier"):
        load_model("timm:net")


def test_no_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"package timm: pip install 'tulip-ood\[timm\]'"):
        load_model("timm:resnet50")
