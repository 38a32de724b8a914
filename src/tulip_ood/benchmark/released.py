"""The networks that OpenOOD releases, where its download script puts them."""

import os
from pathlib import Path

__all__ = ["released_networks"]

# ImageNet-1K: torchvision's own weights, which OpenOOD does not release again.
_IMAGENET = "torchvision:resnet50@IMAGENET1K_V1"


def released_networks(root: str | os.PathLike[str], id_set: str) -> list[str]:
    """Specs of the released networks of an ID set, in the order of their seeds.

    Args:
        root: The folder that holds OpenOOD's `results/`.
        id_set: "cifar10", "cifar100", "imagenet200" or "imagenet"; for this there is always one,
            whatever the folder holds.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "results", "cifar10_resnet18_base_e100", "s0", "best.ckpt")
        ...     file.parent.mkdir(parents=True)
        ...     file.touch()
        ...     [spec[-13:] for spec in released_networks(folder, "cifar10")]
        ['/s0/best.ckpt']
    """
    if id_set == "imagenet":
        return [_IMAGENET]
    found = Path(root, "results").glob(f"{id_set}_*_base_*/s*/best.ckpt")
    return [f"openood:{path}" for path in sorted(found)]
