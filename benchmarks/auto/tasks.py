"""The tasks that rules for `Auto` are judged on: a network, ID images, OOD sets, shifted images.

Images come from a folder that is not in the repository (docs/research.md says where each is from):
`root/` is an OpenOOD-like root as npz (`benchmarks/data/root.py`), `NAME.npz` are packs of JPEG
files (`packs/`).
"""

import io
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from tulip_ood.data.batches import batches
from tulip_ood.data.corruptions import CORRUPTIONS, corrupt
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Root
from tulip_ood.models.spec import load_model
from tulip_ood.numerics.random import permutation

Images = NDArray[np.uint8]  # [N, H, W, 3]
SHIFTED, MILD = 1000, (1, 2, 3)


@dataclass(frozen=True)
class Task:
    """One network and everything it is looked at with; labels are −1 where there are none."""

    name: str
    model: nn.Module
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    shifted: tuple[Tensor, Tensor]
    sets: dict[str, Tensor]
    near: tuple[str, ...]


def openood(id_set: str, folder: Path, checkpoint: str, limit: int, model: Any = None) -> Task:
    """OpenOOD's lists; `model` in place of the checkpoint's network."""
    root, loaded, protocol = Root.open(folder / "root"), load_model(checkpoint), protocol_of(id_set)

    def read(name: str, count: int) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        source = root.part(id_set, name).limited(count).source
        for batch in batches(source, loaded.preprocess, batch_size=500):
            assert batch.inputs is not None
            images.append(batch.inputs)
            labels += [-1 if label is None else int(label) for label in batch.labels]
        return torch.cat(images), torch.tensor(labels)

    near = tuple(one.name for one in protocol.in_group("near"))
    names = (*near, *(one.name for one in protocol.in_group("far")))
    mean, std = _channels(loaded.preprocess.mean), _channels(loaded.preprocess.std)
    test = read("test", limit)
    pixels = (test[0] * std + mean).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    shifted, labels = corrupted(pixels, test[1])
    return Task(
        Path(checkpoint).stem,
        loaded.module if model is None else model,
        read("val", 1000),
        test,
        ((_floats(shifted) - mean) / std, labels),
        {name: read(name, limit)[0] for name in names},
        near,
    )


def packed(
    name: str,
    model: nn.Module,
    folder: Path,
    own: str,
    sets: dict[str, int],
    near: tuple[str, ...],
    parts: tuple[float, float],
    prepare: Callable[[Tensor], Tensor],
) -> Task:
    """Packs of JPEG files: `parts` are where validation and test images begin among the ID ones."""
    images, labels = unpack(folder / f"{own}.npz")
    _, val, test = divided(folder / f"{own}.npz", parts)
    shifted, kept = corrupted(images[test], labels[test])
    outside = {one: unpack(folder / f"{one}.npz")[0][:count] for one, count in sets.items()}
    return Task(
        name,
        model,
        (prepare(_floats(images[val])), labels[val]),
        (prepare(_floats(images[test])), labels[test]),
        (prepare(_floats(shifted)), kept),
        {one: prepare(_floats(found)) for one, found in outside.items()},
        near,
    )


def digits(model: nn.Module, folder: Path, limit: int) -> Task:
    """MNIST's test images: 7,000 to train on, 1,000 to calibrate, others to test; one channel."""
    root = folder / "root"
    with np.load(folder / "digits.npz") as found:
        images, labels = grey(found["x"]), torch.from_numpy(found["y"].astype(np.int64))
    order = permutation(len(images), seed=0, name="parts").tolist()
    val, test = order[7000:8000], order[8000 : 8000 + limit]
    three = np.repeat((images[test] * 255).byte().numpy()[:, 0, :, :, None], 3, axis=-1)
    shifted, kept = corrupted(three, labels[test])
    sets = {"omniglot": omniglot(folder / "omniglot.zip", limit)}
    with np.load(folder / "letters.npz") as found:
        sets["letters"] = grey(found["x"][:limit])
    for name in ("cifar10", "texture", "places365"):
        with np.load(root / f"{name}-test.npz") as found:
            sets[name] = grey(found["x"][:limit])
    return Task(
        "digits",
        model,
        (images[val], labels[val]),
        (images[test], labels[test]),
        (_floats(shifted)[:, :1], kept),
        sets,
        ("omniglot", "letters"),
    )


def omniglot(file: Path, limit: int) -> Tensor:
    """Characters of other alphabets, white on black like MNIST's digits, [N, 1, 28, 28]."""
    with zipfile.ZipFile(file) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        chosen = permutation(len(names), seed=0, name="omniglot").tolist()[:limit]
        found = []
        for at in chosen:
            with archive.open(names[at]) as opened, Image.open(opened) as image:
                small = image.convert("L").resize((28, 28), Image.Resampling.BOX)
                found.append(255 - np.asarray(small))
    strokes = torch.from_numpy(np.stack(found)).float()
    # Thin strokes lose their brightness when they are made smaller.
    strokes = strokes / strokes.amax(dim=(1, 2), keepdim=True).clamp_min(1)
    return strokes[:, None]


def grey(images: Images) -> Tensor:
    """[N, H, W, 3] or [N, H, W] to [N, 1, 28, 28]."""
    x = torch.from_numpy(images).float() / 255
    x = x.mean(-1) if x.ndim == 4 else x
    if x.shape[-1] == 28:
        return x[:, None]
    small = nn.functional.interpolate(
        x[:, None], size=(28, 28), mode="bilinear", antialias=True, align_corners=False
    )
    return small.clamp(0, 1)


def unpack(file: Path) -> tuple[Images, Tensor]:
    """The images of a pack, and their labels."""
    with np.load(file) as found:
        data, at, labels = found["bytes"].tobytes(), found["off"], found["y"]
    images = []
    for begin, end in pairwise(at):
        with Image.open(io.BytesIO(data[begin:end])) as image:
            images.append(np.asarray(image.convert("RGB")))
    return np.stack(images), torch.from_numpy(labels.astype(np.int64))


def divided(file: Path, parts: tuple[float, float]) -> list[NDArray[np.int64]]:
    """Rows of a pack for training, validation and testing: by its own `part` (0, 1, 2), if any.

    Frames of one object must not be on both sides, which a permutation would do.
    """
    with np.load(file) as found:
        own, count = found.get("part"), len(found["y"])
    order = permutation(count, seed=0, name="parts").numpy()
    if own is None:
        return np.split(order, [int(share * count) for share in parts])
    return [order[own[order] == part] for part in range(3)]


def corrupted(images: Images, labels: Tensor) -> tuple[Images, Tensor]:
    """The first images under every corruption in turn, mildly: the answer should still hold."""
    ways = list(product(CORRUPTIONS, MILD))
    count = min(SHIFTED, len(images))
    jobs = [(images[i], *ways[i % len(ways)], i) for i in range(count)]
    with ThreadPoolExecutor(8) as pool:  # NumPy works outside the lock
        found = list(pool.map(_corrupt, jobs))
    return np.stack(found), labels[:count]


def _corrupt(job: tuple[Images, str, int, int]) -> Images:
    image, kind, severity, row = job
    return corrupt(image, kind, severity, row=row)


def _floats(images: Images) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def _channels(values: Any) -> Tensor:
    return torch.tensor(values).reshape(1, -1, 1, 1)
