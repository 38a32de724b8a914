"""Small stand-ins for torchvision, timm and transformers, none of which is installed here."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

CLASSES = ("ant", "bee", "cat")
Install = Callable[..., ModuleType]


class Net(nn.Module):
    """Images to three logits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))


class Transform:
    """What torchvision's `ImageClassification` does to a picture, in its own words."""

    def __init__(self, resize: int = 48, crop: int = 32, interpolation: str = "bilinear") -> None:
        self.resize_size, self.crop_size = [resize], [crop]
        self.mean, self.std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
        self.interpolation = SimpleNamespace(value=interpolation)
        self.rounding: Callable[[float], int] = round

    def __call__(self, picture: Image.Image) -> Tensor:
        side, crop = self.resize_size[0], self.crop_size[0]
        width, height = picture.size
        short = min(width, height)
        size = (int(side * width / short), int(side * height / short))
        if len(self.resize_size) == 2:
            size = (self.resize_size[1], self.resize_size[0])
        method = Image.Resampling[self.interpolation.value.upper()]
        picture = picture.resize(size, method)
        left, top = (self.rounding((n - crop) / 2) for n in size)
        picture = picture.crop((left, top, left + crop, top + crop))
        raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        x = raw.view(crop, crop, 3).permute(2, 0, 1) / 255
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        return (x - mean) / std


class Weights:
    """A member of one of torchvision's enumerations."""

    url = "https://example.org/models/net-0123.pth"

    def __init__(self, name: str, transform: Any = None) -> None:
        self.name = name
        self.meta: dict[str, Any] = {"categories": list(CLASSES)}
        self.transform = transform or Transform()
        self.fails: Exception | None = None
        self.asked: list[dict[str, Any]] = []

    def transforms(self) -> Any:
        return self.transform

    def get_state_dict(self, **how: Any) -> dict[str, Tensor]:
        self.asked.append(how)
        if self.fails is not None:
            raise self.fails
        return {"fc.weight": torch.full((3, 3), 7.0), "fc.bias": torch.zeros(3)}


class Choices:
    """An enumeration of weights; the last one is the default."""

    def __init__(self, *weights: Weights) -> None:
        self._weights = weights
        self.__dict__.update({w.name: w for w in weights}, DEFAULT=weights[-1])

    def __iter__(self) -> Iterator[Weights]:
        return iter(self._weights)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a module of that name where `import` finds it."""

    def put(name: str, **content: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return put


@pytest.fixture
def torchvision(install: Install) -> Choices:
    """torchvision with one network, `net`, and the choice of its weights."""
    choices = Choices(Weights("V1"), Weights("V2", Transform(resize=40, interpolation="bicubic")))

    def get_model(name: str, *, weights: Weights | None = None) -> nn.Module:
        net = Net()
        if weights is not None:
            net.load_state_dict(weights.get_state_dict(progress=True, check_hash=True))
        return net

    models = install(
        "torchvision.models",
        list_models=lambda module: ["net", "nets"],
        get_model_weights=lambda name: choices,
        get_model=get_model,
    )
    install("torchvision", models=models)
    return choices


BROKEN = "raise RuntimeError('operator torchvision::nms does not exist')"


@pytest.fixture
def broken_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torchvision that cannot be imported, and packages that import it."""
    for name, text in (
        ("torchvision", BROKEN),
        ("timm", "import torchvision"),
        ("transformers", "def __getattr__(name):\n    import torchvision"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        for loaded in [n for n in sys.modules if n.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path
