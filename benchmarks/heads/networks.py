"""The networks that are asked for their last linear layer, and which one a reader would name.

All have random weights and 10 outputs. Image networks get inputs as small as they allow; those of
transformers have tiny configurations, so that nothing is downloaded and everything fits one core.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from libraries import import_torchvision
from torch import nn

CLASSES = 10
VOCABULARY, LENGTH = 50, 8


@dataclass(frozen=True)
class Candidate:
    """A network and what should be found in it.

    Attributes:
        library: Where it comes from.
        name: Its name there.
        build: Makes it.
        head: The layer whose output are the logits; None where there is no such layer.
        shape: Of one input; (LENGTH,) for token ids.
        why: Why there is no such layer, or what is not standard here.
        limit: Whether it is known that the layer is not found.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    head: str | None
    shape: tuple[int, ...] = (3, 64, 64)
    why: str = ""
    limit: bool = False


def image(size: int) -> tuple[int, ...]:
    return (3, size, size)


# ------------------------------------------------------------------------- torchvision


def small_vgg(models: Any) -> nn.Module:
    """VGG-16 as it is used for small images: the first dense layer alone would take 0.4 GB."""
    model: nn.Module = models.vgg16(num_classes=CLASSES)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier[0] = nn.Linear(512 * 4, 4096)
    return model


def torchvision_networks() -> Iterator[Candidate]:
    models = import_torchvision().models
    plain = {
        "resnet18": "fc",
        "resnet50": "fc",
        "densenet121": "classifier",
        "mobilenet_v2": "classifier.1",
        "mobilenet_v3_large": "classifier.3",
        "efficientnet_b0": "classifier.1",
        "efficientnet_v2_s": "classifier.1",
        "regnet_y_400mf": "fc",
        "swin_t": "head",
        "convnext_tiny": "classifier.2",
        "shufflenet_v2_x1_0": "fc",
        "mnasnet1_0": "classifier.1",
        "alexnet": "classifier.6",
    }
    for name, head in plain.items():
        yield Candidate(
            "torchvision", name, partial(getattr(models, name), num_classes=CLASSES), head
        )
    vgg = partial(small_vgg, models)
    yield Candidate("torchvision", "vgg16", vgg, "classifier.6", image(32), "pooled to 2 × 2")
    vit = partial(models.vit_b_16, image_size=32, num_classes=CLASSES)
    yield Candidate("torchvision", "vit_b_16", vit, "heads.head", image(32))
    bare = {"num_classes": CLASSES, "aux_logits": False, "init_weights": False}
    yield Candidate("torchvision", "googlenet", partial(models.googlenet, **bare), "fc")
    inception = partial(models.inception_v3, **bare)
    yield Candidate("torchvision", "inception_v3", inception, "fc", image(75))
    squeezed = partial(models.squeezenet1_1, num_classes=CLASSES)
    why = "a ReLU between the 1 × 1 convolution and pooling: logits are not linear in any features"
    yield Candidate("torchvision", "squeezenet1_1", squeezed, None, why=why)


# -------------------------------------------------------------------------------- timm


def timm_networks() -> Iterator[Candidate]:
    import_torchvision()  # timm imports it, too
    import timm

    def candidate(name: str, head: str | None, size: int, why: str, **more: Any) -> Candidate:
        build = partial(timm.create_model, name, num_classes=CLASSES, **more)
        return Candidate("timm", name, build, head, image(size), why)

    convolution = "a 1 × 1 convolution after pooling"
    plain = {
        "resnet18": ("fc", ""),
        "convnext_atto": ("head.fc", ""),
        "efficientnet_b0": ("classifier", ""),
        "regnety_002": ("head.fc", ""),
        "mobilenetv3_small_050": ("classifier", ""),
        "densenet121": ("classifier", ""),
        "dpn68": ("classifier", convolution),
        "resnetv2_50x1_bit": ("head.fc", convolution),
        "poolformer_s12": ("head.fc", ""),
        "edgenext_xx_small": ("head.fc", ""),
        "mobilevit_xxs": ("head.fc", ""),
        "hrnet_w18_small": ("classifier", ""),
        "ghostnet_050": ("classifier", ""),
        "repvgg_a0": ("head.fc", ""),
    }
    for name, (head, why) in plain.items():
        yield candidate(name, head, 64, why)
    sized = {
        "vit_tiny_patch16_224": "head",
        "deit_tiny_patch16_224": "head",
        "swin_tiny_patch4_window7_224": "head.fc",
        "mixer_s16_224": "head",
        "cait_xxs24_224": "head",
    }
    for name, head in sized.items():
        yield candidate(name, head, 64, "", img_size=64)
    two = "the mean of two layers, on two tokens or after two BatchNorms"
    yield candidate("deit_tiny_distilled_patch16_224", None, 64, two, img_size=64)
    yield candidate("levit_128s", None, 224, two)


# ------------------------------------------------------------------------ transformers


def transformers_networks() -> Iterator[Candidate]:
    import_torchvision()  # transformers imports it, too
    import transformers as t

    t.logging.set_verbosity_error()
    common = {"num_labels": CLASSES}
    encoder = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        **common,
    }
    patches = {"image_size": 32, "patch_size": 8, **encoder}
    stages = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], **common}
    swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1]}
    swin |= {"num_heads": [1, 2], "window_size": 4, **common}
    words = {"vocab_size": VOCABULARY, **encoder}
    distil = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    gpt = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
    gpt |= {"bos_token_id": 1, "eos_token_id": 1, **common}
    two = "the mean of two layers, on two tokens"
    table: list[tuple[str, str, dict[str, Any], str | None, tuple[int, ...], str]] = [
        ("ViTForImageClassification", "ViTConfig", patches, "classifier", image(32), ""),
        ("BeitForImageClassification", "BeitConfig", patches, "classifier", image(32), ""),
        ("Dinov2ForImageClassification", "Dinov2Config", patches, "classifier", image(32), ""),
        ("DeiTForImageClassificationWithTeacher", "DeiTConfig", patches, None, image(32), two),
        ("SwinForImageClassification", "SwinConfig", swin, "classifier", image(32), ""),
        ("ConvNextForImageClassification", "ConvNextConfig", stages, "classifier", image(64), ""),
        ("ResNetForImageClassification", "ResNetConfig", stages, "classifier.1", image(64), ""),
        ("BertForSequenceClassification", "BertConfig", words, "classifier", (LENGTH,), ""),
        *(
            (f"{name}ForSequenceClassification", f"{name}Config", settings, head, (LENGTH,), why)
            for name, settings, head, why in (
                ("Roberta", words, "classifier.out_proj", ""),
                ("DistilBert", {**distil, **common}, "classifier", ""),
                ("GPT2", gpt, "score", ""),
            )
        ),
    ]
    for network, config, settings, head, shape, why in table:

        def build(network: str = network, config: str = config, settings: Any = settings) -> Any:
            return getattr(t, network)(getattr(t, config)(**settings))

        yield Candidate("transformers", network, build, head, shape, why)


LIBRARIES = {
    "torchvision": torchvision_networks,
    "timm": timm_networks,
    "transformers": transformers_networks,
}
