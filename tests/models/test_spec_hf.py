"""`hf:NAME` and `hf:FOLDER` with a stand-in: the processor's settings, and what is never done."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.hf_zoo import processor_preprocess
from tulip_ood.models.spec import load_model

from .conftest import CLASSES, Install, Net, Transform

SETTINGS: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 40},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.25, 0.3],
}


class Processor:
    """Rounds the margin of the crop down, as transformers does."""

    def __init__(self) -> None:
        self.settings = dict(SETTINGS)
        self.transform = Transform(resize=40, interpolation="bicubic")
        self.transform.rounding = math.floor

    def to_dict(self) -> dict[str, Any]:
        return self.settings

    def __call__(self, *, images: Any, return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        return {"pixel_values": self.transform(images)[None]}


class Transformers:
    """What the stand-in answers, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.fails: Exception | None = None
        self.info: dict[str, Any] = {"missing_keys": [], "mismatched_keys": []}
        self.labels: dict[int, str] = dict(enumerate(CLASSES))
        self.processor = Processor()

    def network(self, place: str, **how: Any) -> tuple[nn.Module, dict[str, Any]]:
        self.asked.append((place, how))
        if self.fails is not None:
            raise self.fails
        net = Net().half()
        net.config = SimpleNamespace(id2label=self.labels)  # type: ignore[assignment]
        return net, self.info

    def processors(self, place: str, **how: Any) -> Processor:
        self.asked.append((place, how))
        return self.processor


@pytest.fixture
def hub(install: Install) -> Transformers:
    made = Transformers()
    install(
        "transformers",
        AutoModelForImageClassification=SimpleNamespace(from_pretrained=made.network),
        AutoImageProcessor=SimpleNamespace(from_pretrained=made.processors),
    )
    return made


def test_from_the_hub(hub: Transformers) -> None:
    loaded = load_model("hf:org/net")
    assert (loaded.classes, loaded.reopens) == (CLASSES, True)
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    assert loaded.preprocess == Preprocess(40, 32, mean, std, "bicubic", crop_rounding="down")
    (place, how), (_, how_processor) = hub.asked
    assert place == "org/net"
    assert how["weights_only"] is True
    for asked in (how, how_processor):
        assert (asked["trust_remote_code"], asked["local_files_only"]) == (False, False)


def test_from_a_folder_nothing_is_fetched(
    hub: Transformers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(f"hf:{tmp_path}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "net").mkdir()
    load_model("hf:~/net")
    assert [how["local_files_only"] for _, how in hub.asked] == [True] * 4
    assert hub.asked[2][0] == str(tmp_path / "net")
    hub.fails = OSError("no config.json")
    with pytest.raises(FileFormatError, match="cannot be loaded: OSError: no config.json"):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("place", ["/gone", "./gone", "~/gone"])
def test_a_folder_that_is_not_there(hub: Transformers, place: str) -> None:
    with pytest.raises(FileFormatError, match="there is no folder .*gone"):
        load_model(f"hf:{place}")


def test_names_that_cannot_be(hub: Transformers) -> None:
    for spec in ("hf:", "hf:a/b/c", "hf:a/"):
        with pytest.raises(InputError, match="names no network"):
            load_model(spec)


def test_names_of_outputs(hub: Transformers) -> None:
    for labels in ({0: "LABEL_0", 1: "LABEL_1"}, {1: "a", 2: "b"}, {}):
        hub.labels = labels
        assert load_model("hf:org/net").classes is None
    hub.labels = {"1": "b", "0": "a"}  # type: ignore[dict-item]  # as they lie in a JSON file
    assert load_model("hf:org/net").classes == ("a", "b")


def test_a_network_that_is_not_trained(hub: Transformers) -> None:
    hub.info = {"missing_keys": {"classifier.weight", "classifier.bias"}}
    with pytest.raises(ModelError, match=r"lack classifier\.bias, classifier\.weight, which would"):
        load_model("hf:org/net")


def test_what_cannot_be_loaded(hub: Transformers) -> None:
    for error, words in (
        (OSError("no route"), "no route.*models--org--net"),
        (ValueError("set trust_remote_code=True"), "such code is not run here"),
        (ValueError("unknown model type"), "cannot be loaded: ValueError: unknown model type"),
    ):
        hub.fails = error
        with pytest.raises(ModelError, match=words):
            load_model("hf:org/net")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": {"height": 40, "width": 40}}, "grey levels on average"),  # it does not squash
        ({"size": {"height": 32, "width": 30}}, r"the size is \[32, 30\], not a square"),
        ({"size": {"longest_edge": 40}}, "it resizes to {'longest_edge': 40}"),
        ({"size": {"shortest_edge": 40, "longest_edge": 60}}, "it resizes to {"),
        ({"do_flip_channel_order": True}, "the step do_flip_channel_order"),
        ({"do_center_crop": False}, "it does not crop"),
        ({"crop_size": {"height": 32, "width": 30}}, "not a square"),
        ({"do_rescale": False}, "not scaled"),
        ({"rescale_factor": 1 / 127.5}, "not scaled"),
        ({"resample": 5}, "interpolates by 'method 5'"),
        ({"image_mean": [0.3, 0.5, 0.6]}, "grey levels on average"),
        ({"do_normalize": False}, "grey levels on average"),
        ({"do_resize": False}, "grey levels on average"),
        ({"size": {"shortest_edge": 41}}, "grey levels on average"),
    ],
)
def test_a_processor_that_cannot_be_repeated(
    hub: Transformers, change: dict[str, Any], words: str
) -> None:
    hub.processor.settings |= change
    with pytest.raises(ModelError, match=f"cannot be repeated here.*{words}"):
        load_model("hf:org/net")


@pytest.mark.parametrize(
    ("crop", "expected"), [({"do_center_crop": None}, 40), ({"do_center_crop": True}, 32)]
)
def test_both_sides_may_be_resized(hub: Transformers, crop: dict[str, Any], expected: int) -> None:
    hub.processor.settings |= {"size": {"height": 40, "width": 40}, **crop}
    hub.processor.transform.resize_size = [40, 40]
    hub.processor.transform.crop_size = [expected]
    found = load_model("hf:org/net").preprocess
    assert found is not None
    assert (found.resize, found.crop, found.squash) == (40, expected, True)


@pytest.mark.parametrize("margin", [35, 36, 37, 38])
def test_a_crop_that_is_rounded_otherwise_is_noticed(hub: Transformers, margin: int) -> None:
    hub.processor.settings["size"] = {"shortest_edge": margin}
    hub.processor.transform.resize_size = [margin]
    load_model("hf:org/net")
    hub.processor.transform.rounding = round
    with pytest.raises(ModelError, match="grey levels on average"):
        load_model("hf:org/net")


CONVNEXT = {"image_processor_type": "ConvNextImageProcessor", "do_center_crop": None}


@pytest.mark.parametrize(
    ("change", "sides"),
    [
        (CONVNEXT | {"crop_pct": 0.875}, (256, 224)),
        (CONVNEXT | {"crop_pct": 0.875, "do_center_crop": True}, (256, 200)),
        (CONVNEXT | {"size": {"shortest_edge": 384}}, (384, 384)),
        ({"size": {"height": 224, "width": 224}, "crop_pct": 0.9}, (248, 200)),  # PoolFormer's
        ({"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 0.9}, (248, 200)),
        ({"image_processor_type": "LevitImageProcessor"}, (256, 200)),
        ({"do_resize": False}, (None, 200)),
    ],
)
def test_processors_with_rules_of_their_own(
    change: dict[str, Any], sides: tuple[int | None, int]
) -> None:
    sized = {"size": {"shortest_edge": 224}, "crop_size": {"height": 200, "width": 200}}
    found = processor_preprocess(SETTINGS | sized | change, "hf:a/b")
    assert (found.resize, found.crop) == sides
    assert found.squash == (sides[0] == sides[1])
    assert found.crop_rounding == "down"


def test_no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"package transformers: pip install 'tulip-ood\[hf\]'"):
        load_model("hf:microsoft/resnet-50")
