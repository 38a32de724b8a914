"""The networks that are opened by name, and what is expected of each.

None has trained weights, so that nothing is downloaded: torchvision's and timm's are opened with
`@none`, those of transformers are written to a folder first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CLASSES = 5


@dataclass(frozen=True)
class Candidate:
    """A network to be opened.

    Attributes:
        spec: What is opened.
        theirs: From a picture to the network's input, by the library itself.
        refused: Why its images cannot be prepared here; empty where they can.
    """

    spec: str
    theirs: Callable[[Any], torch.Tensor]
    refused: str = ""


# ---------------------------------------------------------------------- torchvision

# Those of the paper's tables have their own line in run.py, weights by weights.
TORCHVISION = ("resnet50", "vit_b_16", "mobilenet_v3_large", "efficientnet_v2_s", "swin_t")


def torchvision_candidates() -> Iterator[Candidate]:
    import torchvision.models as models

    for name in TORCHVISION:
        default = models.get_model_weights(name).DEFAULT
        yield Candidate(f"torchvision:{name}@none", default.transforms())


# ----------------------------------------------------------------------------- timm

TIMM = {
    "resnet50.a1_in1k": "",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "",
    "convnext_atto.d2_in1k": "",
    "efficientnet_b0.ra_in1k": "",
    "mobilenetv3_large_100.ra_in1k": "",
    "convnextv2_nano.fcmae_ft_in22k_in1k_384": "",  # both sides are resized
}


def timm_candidates() -> Iterator[Candidate]:
    import timm

    for name, refused in TIMM.items():
        config = timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
        )
        yield Candidate(f"timm:{name}@none", timm.data.create_transform(**config), refused)


# --------------------------------------------------------------------- transformers


def hf_candidates(folder: Path) -> Iterator[Candidate]:
    import transformers as t

    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()
    stages = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    tokens = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    dino = {**tokens, "image_size": 224, "patch_size": 14}
    vit = {**tokens, "intermediate_size": 64, "image_size": 224}
    crop = {"height": 224, "width": 224}
    swin = {"image_size": 224, "embed_dim": 24, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 3, 4]}
    pools = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    resnet = {"size": {"shortest_edge": 224}}
    bit = {"size": {"shortest_edge": 256}, "crop_size": crop}
    # network, its settings, processor, its settings, why it is refused
    table = (
        ("ResNet", stages, "ConvNext", resnet, ""),
        ("ConvNext", pools, "ConvNext", {"size": {"shortest_edge": 288}, "crop_pct": 0.95}, ""),
        ("Dinov2", dino, "Bit", bit, ""),
        ("MobileNetV2", {"depth_multiplier": 0.35}, "MobileNetV2", {}, ""),
        ("Levit", {}, "Levit", {}, ""),
        ("PoolFormer", pools, "PoolFormer", {}, ""),
        ("ViT", vit, "ViT", {}, ""),
        ("DeiT", vit, "DeiT", {}, ""),
        ("Swin", swin, "ViT", {}, ""),
        ("ConvNext", pools, "ConvNext", {}, ""),  # both sides are resized from 384 on
        ("ConvNext", pools, "MobileNetV1", {"size": {"shortest_edge": 237}}, ""),
        ("ViT", vit, "ViT", {"size": {"height": 224, "width": 192}}, "the size is no square"),
        ("ResNet", stages, "MobileViT", {}, "the channels are swapped"),
    )
    for i, (network, settings, kind, prepared, refused) in enumerate(table):
        place = folder / f"{i}-{network.lower()}-{kind.lower()}"
        torch.manual_seed(0)
        config = getattr(t, f"{network}Config")(num_labels=CLASSES, **settings)
        config.id2label = {k: f"class {k}" for k in range(CLASSES)}
        getattr(t, f"{network}ForImageClassification")(config).save_pretrained(place)
        processor = getattr(t, f"{kind}ImageProcessor")(**prepared)
        processor.save_pretrained(place)

        def theirs(picture: Any, processor: Any = processor) -> torch.Tensor:
            return processor(images=picture, return_tensors="pt")["pixel_values"][0]

        yield Candidate(f"hf:{place}", theirs, refused)
