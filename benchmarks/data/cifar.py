"""The packed sets and a checkpoint, as tensors and a network; shared by the benchmarks."""

from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from tulip_ood.models.resnet import ResNet18Small


def load_network(path: Path) -> tuple[ResNet18Small, Tensor, Tensor]:
    """A ResNet-18 checkpoint with its mean and deviation."""
    with safe_open(path, framework="pt") as file:
        meta = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = ResNet18Small(int(meta["classes"]))
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    mean, std = (torch.tensor([float(v) for v in meta[k].split(",")]) for k in ("mean", "std"))
    return model.eval(), mean, std


def load_sets(path: Path, mean: Tensor, std: Tensor) -> dict[str, Tensor]:
    """Every set of a packed npz, normalised, [N, 3, 32, 32]; labels as they are."""
    found: dict[str, Tensor] = {}
    with np.load(path) as packed:
        for name in packed.files:
            array = torch.from_numpy(packed[name])
            if name.endswith("labels"):
                found[name] = array.long()
            else:
                images = array.permute(0, 3, 1, 2).float() / 255
                found[name] = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    return found


def some(rows: Tensor, n: int) -> Tensor:
    """n of them from all over: sets may be sorted by class."""
    return rows if len(rows) <= n else rows[torch.linspace(0, len(rows) - 1, n).long()]


def groups(sets: dict[str, Tensor]) -> dict[str, list[str]]:
    """The names of the near and far sets."""
    return {g: [n for n in sets if n.startswith(f"{g}_")] for g in ("near", "far")}
