"""Networks from files of weights: our safetensors, which say what they are, and OpenOOD's `.ckpt`.

A `.ckpt` is a pickle; it is opened so that it can hold tensors only (`weights_only`), and says by
the names and shapes of its tensors which of OpenOOD's networks it belongs to.
"""

import math
import os
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError
from tulip_ood.models.architectures import ARCHITECTURES, find_architecture
from tulip_ood.models.extras import Found, one_line
from tulip_ood.network.looks import absent, looks_like
from tulip_ood.wording import counted

__all__ = ["check_file", "load_checkpoint", "load_openood"]

_METADATA = ("arch", "classes", "mean", "std")
_OPENOOD = ("resnet18_32x32", "resnet18_224x224", "resnet50")


def check_file(path: str) -> None:
    """Refuse a file that is not there.

    Example:
        >>> check_file("gone.safetensors")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: there is no file gone.safetensors
    """
    if not os.path.isfile(path):
        raise FileFormatError(absent(path, "file"))


def load_checkpoint(path: str) -> Found:
    """The network in a safetensors file with the metadata `arch, classes, mean, std`.

    A further entry `dropout` is the rate of the dropout before the last layer: the network is
    built with it again, so that MC-Dropout finds it.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> about = {"arch": "resnet18_32x32", "classes": "3", "dropout": "0.5",
        ...          "mean": "0.5,0.5,0.5", "std": "0.2,0.2,0.2"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file(ResNet18Small(3).state_dict(), f"{folder}/net.safetensors", about)
        ...     found = load_checkpoint(f"{folder}/net.safetensors")
        >>> found.module.dropout, found.preprocess.crop
        (Dropout(p=0.5, inplace=False), 32)
    """
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        seen = looks_like(path)
        raise FileFormatError(
            f"{path} is damaged, or no safetensors file: "
            f"{error if seen is None else f'it is {seen}'}. Expected weights of `tulip train`, or "
            f"use package.module:factory"
        ) from error
    if "tulip" in metadata:
        raise FileFormatError(f"{path} is a detector, not a network: name the network it is for")
    lacking = [key for key in _METADATA if key not in metadata]
    if lacking:
        raise FileFormatError(
            f"{path} does not say what it is: its metadata lack {', '.join(lacking)}. Save it with "
            f"metadata {', '.join(_METADATA)}, or use package.module:factory"
        )
    architecture = find_architecture(metadata["arch"])
    if architecture is None:
        raise FileFormatError(
            f"{path} has the architecture {metadata['arch']!r}; known are "
            f"{', '.join(ARCHITECTURES)}. Use package.module:factory for your own"
        )
    try:
        mean, std = (tuple(map(float, metadata[key].split(","))) for key in ("mean", "std"))
        preprocess = Preprocess(
            architecture.resize, architecture.crop, mean, std, architecture.interpolation
        )
        rate = _dropout(metadata)
        classes = int(metadata["classes"])
        _check_classes(classes, state)
        module = architecture.build(classes, dropout=rate)
        module.load_state_dict(_single_precision(state))
    except (ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not fit its own metadata: {one_line(error)}") from error
    return Found(module, preprocess, None)


def _check_classes(classes: int, state: Mapping[str, Tensor]) -> None:
    """Before a network of that size is made: a number costs a file nothing."""
    weight = state.get("fc.weight")
    rows = 0 if weight is None or not weight.ndim else len(weight)
    if classes < 1 or classes != rows:
        raise ValueError(f"classes is {classes}, but fc.weight has {counted(rows, 'row')}")


def _dropout(metadata: Mapping[str, str]) -> float:
    rate = float(metadata.get("dropout", "0"))
    if not (math.isfinite(rate) and 0 <= rate < 1):
        raise ValueError(f"dropout must be at least 0 and less than 1, got {rate}")
    return rate


def _single_precision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored in half precision to save space; passes run in single precision."""
    return {name: t.float() if t.is_floating_point() else t for name, t in state.items()}


def load_openood(path: str) -> Found:
    """The network in one of OpenOOD's released checkpoints.

    Known are ResNet18_32x32 (a stem of 3 × 3), ResNet18_224x224 (of 7 × 7) and ResNet-50; the
    number of classes is that of the last layer's rows. The file does not say how images are
    prepared: that follows from the ID set.

    Example:
        >>> import tempfile
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save(ResNet18Small(100).state_dict(), f"{folder}/best.ckpt")
        ...     found = load_openood(f"{folder}/best.ckpt")
        >>> type(found.module).__name__, found.module.fc.out_features, found.preprocess
        ('ResNet18Small', 100, None)
    """
    check_file(path)
    state = _state(path)
    name = _architecture(path, state)
    weight = state.get("fc.weight")
    if weight is None or weight.ndim != 2:
        raise FileFormatError(f"{path} has no last layer fc.weight: {_seen(state)}")
    module: nn.Module = ARCHITECTURES[name].build(len(weight))
    try:
        module.load_state_dict(_single_precision(state))
    except RuntimeError as error:
        raise FileFormatError(
            f"{path} looks like {name} with {len(weight)} classes, but does not fit: "
            f"{one_line(error)}"
        ) from error
    return Found(module, None, None)


def _state(path: str) -> dict[str, Tensor]:
    """What `torch.save` wrote, if it is names and tensors; without the names that wrappers add."""
    try:
        _check_stored(path)
        with warnings.catch_warnings(action="ignore"):  # what it has against a pickle, we refuse
            held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged pickle raises is not foreseeable
        raise FileFormatError(f"{path} is not opened: {one_line(error)}") from error
    if isinstance(held, Mapping) and isinstance(held.get("state_dict"), Mapping):
        held = held["state_dict"]
    if not isinstance(held, Mapping) or not all(isinstance(t, Tensor) for t in held.values()):
        raise FileFormatError(
            f"{path} holds no state dict (names and tensors, alone or under 'state_dict') but "
            f"{_content(held)}"
        )
    for name, t in held.items():
        if not _is_whole(t):
            raise FileFormatError(
                f"{path} is not opened: {name} of shape {tuple(t.shape)} is no plain tensor with "
                f"all of its numbers"
            )
    return {str(name).removeprefix("module."): t for name, t in held.items()}


def _content(held: Any) -> str:
    if not isinstance(held, Mapping):
        return f"a {type(held).__name__}"
    others = [f"{name} ({type(t).__name__})" for name, t in held.items() if type(t) is not Tensor]
    return f"a {type(held).__name__} with {', '.join(others[:3])}"


def _is_whole(t: Tensor) -> bool:
    """Not sparse, not quantised, and no stride of 0 that makes terabytes out of one number."""
    plain = type(t) is Tensor and t.layout == torch.strided and not t.is_quantized
    return plain and t.numel() * t.element_size() <= t.untyped_storage().nbytes()


def _check_stored(path: str) -> None:
    """`torch.save` packs nothing; what is packed may unpack to more than there is memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as members:
            packed = [m.filename for m in members.infolist() if m.compress_type]
        if packed:
            raise ValueError(f"{packed[0]} is compressed, which torch.save never does")


def _architecture(path: str, state: Mapping[str, Tensor]) -> str:
    stem = state.get("conv1.weight")
    shape = () if stem is None else tuple(stem.shape)
    if shape == (64, 3, 3, 3) and "layer1.0.conv3.weight" not in state:
        return "resnet18_32x32"
    if shape == (64, 3, 7, 7):
        return "resnet50" if "layer1.0.conv3.weight" in state else "resnet18_224x224"
    raise FileFormatError(
        f"{path} belongs to none of OpenOOD's networks that are known ({', '.join(_OPENOOD)}): "
        f"{_seen(state)}. Write a function that builds the network and loads it, and name it as "
        f"package.module:factory"
    )


def _seen(state: Mapping[str, Tensor]) -> str:
    names = list(state)
    return f"it holds {counted(len(names), 'tensor')}, first {', '.join(names[:3]) or 'none'}"
