"""Networks for a benchmark, from what the user named."""

import re
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.data.protocol import Protocol
from tulip_ood.errors import InputError
from tulip_ood.models.spec import load_model

__all__ = ["open_network", "training_seed"]

_FILES = (".safetensors", ".pt2")
_SEED_FOLDER = re.compile(r"^s(\d+)$")  # OpenOOD's checkpoints lie in s0, s1, s2


def open_network(
    spec: str,
    protocol: Protocol,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: str | None = None,
    *,
    trust: bool = False,
) -> BenchNetwork:
    """The network that a spec names, with the preparation of images that belongs to it.

    That is the network's own where it has one, else the protocol's; `mean` and `std` go before
    both.

    Example:
        >>> from tulip_ood.data.protocol import protocol_of
        >>> net = open_network("tulip_ood.models.resnet:ResNet18Small", protocol_of("cifar10"))
        >>> net.name, net.preprocess.crop
        ('ResNet18Small', 32)
    """
    loaded = load_model(spec, trust=trust)
    preprocess = loaded.preprocess or protocol.preprocess
    if mean is not None or std is not None:
        preprocess = replace(preprocess, mean=mean or preprocess.mean, std=std or preprocess.std)
    outputs = _outputs(loaded.module)
    if outputs is not None and outputs != protocol.classes:
        raise InputError(
            f"{spec} has {outputs} outputs, but {protocol.id_set} has {protocol.classes} classes"
        )
    module = loaded.module if device is None else loaded.module.to(device)
    return BenchNetwork(_name(spec), module, preprocess, training_seed(spec))


def training_seed(spec: str) -> int | None:
    """The seed that a checkpoint says it was trained with, or that its folder is named after.

    Example:
        >>> training_seed("openood:results/cifar10_resnet18/s2/best.ckpt")
        2
        >>> training_seed("torchvision:resnet50") is None
        True
    """
    path = Path(spec.removeprefix("openood:"))
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safe_open(path, framework="pt") as file:
                noted = (file.metadata() or {}).get("seed")
        except (SafetensorError, OSError):
            return None
        return int(noted) if noted is not None and noted.isdigit() else None
    folder = _SEED_FOLDER.match(path.parent.name)
    return None if folder is None else int(folder[1])


def _name(spec: str) -> str:
    """Of a file without its suffix; of others all behind the colon, tags included."""
    path = Path(spec.removeprefix("openood:"))
    if spec.startswith("openood:") and _SEED_FOLDER.match(path.parent.name):
        return f"{path.parent.parent.name}_{path.parent.name}"
    if spec.startswith("openood:") or path.suffix.lower() in _FILES:
        return path.stem
    return spec.rpartition(":")[2] or spec


def _outputs(module: object) -> int | None:
    """The outputs of the last linear layer, where there is one."""
    from torch import nn

    assert isinstance(module, nn.Module)
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return linear[-1].out_features if linear else None
