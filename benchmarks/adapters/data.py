"""Images of ID digits and of six kinds of OOD, in OpenOOD's layout, and a small network."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from tulip_ood.numerics import random

BATCH = 64  # of the libraries' loaders and of our passes: the same inputs go together
OOD = ("cifar100", "tin", "mnist", "svhn", "texture", "places365")  # names that OpenOOD asks for
NEAR = OOD[:2]


class Net(nn.Module):
    """Logits, or features too, as OpenOOD's networks do it."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 48)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor, return_feature: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        for stage in self.stages:
            x = stage(x)
        z = x.mean((2, 3))
        return (self.fc(z), z) if return_feature else self.fc(z)


@dataclass(frozen=True)
class Data:
    """A folder of images, their tensors by role and set, and a trained network."""

    folder: tempfile.TemporaryDirectory[str]
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood_val: Tensor
    ood: Mapping[str, Tensor]
    net: Net = field(default_factory=Net)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net.parameters())

    @property
    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.net(self.test[0]).argmax(1) == self.test[1]).float().mean())

    @property
    def sizes(self) -> dict[str, Tensor]:
        known = {"train": self.train[0], "val": self.val[0], "test": self.test[0]}
        return {**known, "OOD val": self.ood_val, **self.ood}


def make_data(seed: int = 0) -> Data:
    """Scikit-learn's digits; OOD are digits turned, mirrored, inverted, mixed, torn, and noise."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = random.permutation(len(digits.images), seed=seed, name="adapters").numpy()
    x = (digits.images[order] / 16).astype(np.float32)
    y = digits.target[order]
    rest = x[1400:]
    noise = random.uniform((len(rest), 8, 8), seed=seed, name="noise").numpy()
    shuffled = random.permutation(64, seed=seed, name="torn").numpy()
    sets = {
        "cifar100": rest.transpose(0, 2, 1),
        "tin": rest[:, :, ::-1],
        "mnist": 1 - rest,
        "svhn": (rest + rest[::-1]) / 2,
        "texture": rest.reshape(-1, 64)[:, shuffled].reshape(-1, 8, 8),
        "places365": noise,
    }
    known = {"train": slice(0, 500), "val": slice(500, 900), "test": slice(900, 1400)}
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    for split, rows in known.items():
        _write(root, f"{split}_cifar10", "cifar10", x[rows], y[rows])
    for name, images in sets.items():
        _write(root, f"test_{name}", name, images, np.full(len(images), -1))
    _write(root, "val_tin", "tin", x[:100, ::-1], np.full(100, -1))
    _write(root, "test_cifar10c", "cifar10c", x[900:910], y[900:910])  # its loader wants them
    read = {name: _read(root, f"{name}_cifar10") for name in known}
    ood = {name: _read(root, f"test_{name}")[0] for name in OOD}
    data = Data(folder, **read, ood_val=_read(root, "val_tin")[0], ood=ood)
    _train(data, seed)
    return data


def _write(root: Path, name: str, kind: str, images: np.ndarray, labels: np.ndarray) -> None:
    place = root / "images_classic" / kind
    lists = root / "benchmark_imglist" / "cifar10"
    place.mkdir(parents=True, exist_ok=True)
    lists.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        grey = np.round(image * 255).astype(np.uint8)
        Image.fromarray(grey).resize((32, 32), Image.Resampling.BILINEAR).save(
            place / f"{name}-{i}.png"
        )
        lines.append(f"{kind}/{name}-{i}.png {label}\n")
    (lists / f"{name}.txt").write_text("".join(lines))


def _read(root: Path, name: str) -> tuple[Tensor, Tensor]:
    """By OpenOOD's own dataset and preprocessing."""
    from openood.datasets.imglist_dataset import ImglistDataset
    from openood.evaluation_api.preprocessor import get_default_preprocessor

    prepare = get_default_preprocessor("cifar10")
    rows = ImglistDataset(
        name=name,
        imglist_pth=str(root / "benchmark_imglist" / "cifar10" / f"{name}.txt"),
        data_dir=str(root / "images_classic"),
        num_classes=10,
        preprocessor=prepare,
        data_aux_preprocessor=prepare,
    )
    samples = [rows[i] for i in range(len(rows))]
    return torch.stack([s["data"] for s in samples]), torch.tensor([s["label"] for s in samples])


def _train(data: Data, seed: int, epochs: int = 12) -> None:
    x, y = data.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in data.net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        optimiser = torch.optim.Adam(data.net.parameters(), lr=0.005)
        data.net.train()
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(50):
                optimiser.zero_grad()
                F.cross_entropy(data.net(x[batch]), y[batch]).backward()
                optimiser.step()
    data.net.eval().requires_grad_(True)
