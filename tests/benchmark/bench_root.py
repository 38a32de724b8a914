"""A benchmark that runs in seconds: ten kinds of gratings, two OOD sets, networks of one layer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.data.protocol import protocol_of

SIDE = 32


def gratings(n: int, seed: int, noise: float = 12.0) -> tuple[Any, Any]:
    """uint8 images [n, 32, 32, 3] of ten orientations, and which."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    y, x = np.mgrid[:SIDE, :SIDE]
    angle = np.pi * labels[:, None, None] / 10
    wave = np.sin(0.6 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 0.5, (n, 1, 1)))
    pixels = 128 + 60 * wave[..., None] + rng.normal(0, noise, (n, SIDE, SIDE, 3))
    return pixels.clip(0, 255).astype(np.uint8), labels


def make_root(folder: Path, *, ood_val: bool = True) -> Path:
    """An npz root with validation, test and training images of CIFAR-10's protocol."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(9)
    noise = rng.integers(0, 256, (60, SIDE, SIDE, 3), dtype=np.uint8)
    files = {
        "val": gratings(120, 1),
        "test": gratings(70, 2),
        "train": gratings(90, 3),
        "shifted": gratings(50, 4, noise=60.0),
        "near": (gratings(60, 5)[0][:, :, :, [0, 0, 1]] // 2, -np.ones(60, int)),
        "far": (noise[:40], -np.ones(40, int)),
        "ood_val": (noise[40:], -np.ones(20, int)),
    }
    for name, (x, y) in files.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)

    def part(name: str) -> dict[str, Any]:
        return {"file": f"{name}.npz", "list": "none", "stand_in": f"{name} of a test"}

    sets: dict[str, Any] = {
        "cifar10": {name: part(name) for name in ("train", "val", "test")},
        "cifar10c": {"test": part("shifted")},
        "cifar100": {"test": part("near")},
        "svhn": {"test": part("far")},
    }
    if ood_val:
        sets["tin"] = {"val": part("ood_val")}
    (folder / "sets.json").write_text(json.dumps(sets))
    return folder


class Net(nn.Module):
    """A small convolutional network, with dropout if asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, stride=3)
        self.norm = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))
        logits: torch.Tensor = self.fc(self.dropout(pooled))
        return logits


def make_network(seed: int, dropout: float = 0.0) -> BenchNetwork:
    """Trained for a moment."""
    preprocess = protocol_of("cifar10").preprocess
    images, labels = gratings(400, 100 + seed)
    x, y = preprocess.normalise(images), torch.from_numpy(labels)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Net(dropout)
        optimiser = torch.optim.Adam(module.parameters(), 2e-2)
        for _ in range(25):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()
    return BenchNetwork(f"net{seed}", module.eval(), preprocess, seed)


def make_one() -> nn.Module:
    """A factory for the command line."""
    return make_network(0).module


def make_two() -> nn.Module:
    """Another."""
    return make_network(1).module
