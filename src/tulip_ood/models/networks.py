"""The networks of the paper's ImageNet-1K tables, by short names.

All are torchvision's. The paper says which weights it took only for ResNet-50: OpenOOD's network is
`IMAGENET1K_V1`, and its second table has a column "ResNet-50(V2)". Of the others it says
"pretrained models available online"; as no V2 is marked, torchvision's first weights are taken.
"""

import difflib
import os

from tulip_ood.errors import InputError

__all__ = ["NETWORKS", "resolve"]

NETWORKS = {
    "resnet50-v1": "torchvision:resnet50@IMAGENET1K_V1",
    "resnet50-v2": "torchvision:resnet50@IMAGENET1K_V2",
    "vit-b-16": "torchvision:vit_b_16@IMAGENET1K_V1",
    "mobilenet-v3-large": "torchvision:mobilenet_v3_large@IMAGENET1K_V1",
    "vgg-16": "torchvision:vgg16@IMAGENET1K_V1",
    "regnet-y-16gf": "torchvision:regnet_y_16gf@IMAGENET1K_V1",
}


def resolve(name: str) -> str:
    """The spec that a short name stands for; a spec stays what it is.

    Example:
        >>> resolve("resnet50-v2"), resolve("net.safetensors")
        ('torchvision:resnet50@IMAGENET1K_V2', 'net.safetensors')
        >>> resolve("resnet50")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: 'resnet50' names no network; expected package.module:factory, \
file.safetensors, file.pt2, openood:FILE, torchvision:NAME, timm:NAME, hf:NAME, \
efficientnet-lite:0, or one of resnet50-v1, resnet50-v2, vit-b-16, mobilenet-v3-large, vgg-16, \
regnet-y-16gf; do you mean resnet50-v2?
    """
    if name in NETWORKS:
        return NETWORKS[name]
    if ":" in name or os.path.splitext(name)[1]:
        return name
    if os.path.isdir(name):
        raise InputError(
            f"{name!r} is a folder, and names no network: one of transformers (with config.json) "
            f"is named hf:{name}; otherwise name a file in it, or package.module:factory"
        )
    near = difflib.get_close_matches(name.lower(), NETWORKS, 1)
    meant = f"; do you mean {near[0]}?" if near else ""
    raise InputError(
        f"{name!r} names no network; expected package.module:factory, file.safetensors, file.pt2, "
        f"openood:FILE, torchvision:NAME, timm:NAME, hf:NAME, efficientnet-lite:0, or one of "
        f"{', '.join(NETWORKS)}{meant}"
    )
