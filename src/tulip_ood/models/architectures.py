"""The architectures that a checkpoint's metadata may name."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tulip_ood.models.digits import DigitNet
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.models.resnet224 import ResNet18, ResNet50

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of", "dropout_of", "find_architecture"]


@dataclass(frozen=True)
class Architecture:
    """How a network is built, and the size of its images.

    Attributes:
        build: Takes the number of classes and the keyword `dropout`.
        resize: The shorter side after resizing.
        crop: The side of the square cut out of the centre.
        interpolation: How images are resized.

    Example:
        >>> ARCHITECTURES["resnet18_32x32"].build(7, dropout=0.5).dropout
        Dropout(p=0.5, inplace=False)
    """

    build: Callable[..., nn.Module]
    resize: int
    crop: int
    interpolation: str = "bilinear"


ARCHITECTURES = {
    "resnet18_32x32": Architecture(ResNet18Small, 32, 32),
    "resnet18_224x224": Architecture(ResNet18, 256, 224),
    "resnet50": Architecture(ResNet50, 256, 224),
    "digits_8x8": Architecture(DigitNet, 8, 8, "box"),  # the demo's
}


def find_architecture(name: str) -> Architecture | None:
    """An architecture by its name, or by that of our class (early checkpoints have it).

    Example:
        >>> find_architecture("ResNet18Small") is ARCHITECTURES["resnet18_32x32"]
        True
        >>> find_architecture("vgg") is None
        True
    """
    by_class = {getattr(a.build, "__name__", ""): a for a in ARCHITECTURES.values()}
    return ARCHITECTURES.get(name, by_class.get(name))


def architecture_of(model: nn.Module) -> str:
    """The name to write into a checkpoint; of a network that is not ours, its class.

    Example:
        >>> architecture_of(ResNet18Small(10)), architecture_of(nn.Linear(2, 2))
        ('resnet18_32x32', 'Linear')
    """
    names = [name for name, a in ARCHITECTURES.items() if a.build is type(model)]
    return names[0] if names else type(model).__name__


def dropout_of(model: nn.Module) -> float:
    """The rate of the last dropout layer, which is the one before the last layer; 0 without any.

    Example:
        >>> dropout_of(ResNet18Small(10, dropout=0.3)), dropout_of(ResNet18Small(10))
        (0.3, 0.0)
    """
    rates = [float(m.p) for m in model.modules() if isinstance(m, nn.Dropout)]
    return rates[-1] if rates else 0.0
