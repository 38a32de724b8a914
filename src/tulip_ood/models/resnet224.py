"""ResNet-18 and ResNet-50 for 224 × 224 images, with the layout and names that checkpoints use.

OpenOOD's ResNet18_224x224 and its ResNet-50 have torchvision's names (`downsample.0`, `.1`); with
these two, their checkpoints open where torchvision is not installed.
"""

import torch
from torch import Tensor, nn

__all__ = ["ResNet18", "ResNet50"]


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
    )


class _Basic(nn.Module):
    """Two 3 × 3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features in, features out."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """1 × 1, 3 × 3 (with the stride, as in torchvision) and 1 × 1 around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features in, features out."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class _ResNet(nn.Module):
    """A 7 × 7 stem of stride 2, max-pooling, four stages, the mean, one linear layer."""

    def __init__(
        self,
        block: type[_Basic | _Bottleneck],
        depths: tuple[int, ...],
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs, stages = 64, []
        for i, depth in enumerate(depths):
            width = 64 * 2**i
            blocks = []
            for k in range(depth):
                blocks.append(block(inputs, width, 2 if i > 0 and k == 0 else 1))
                inputs = block.expansion * width
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.dropout(x.mean(dim=(2, 3)))
        logits: Tensor = self.fc(x)
        return logits


class ResNet18(_ResNet):
    """The network of OpenOOD's ImageNet-200 benchmark.

    Args:
        classes: The number of outputs.
        dropout: If positive, dropout before the last layer (for MC-Dropout).

    Example:
        >>> net = ResNet18(200)
        >>> net.eval()(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 200])
    """

    def __init__(self, classes: int = 1000, *, dropout: float = 0.0) -> None:
        super().__init__(_Basic, (2, 2, 2, 2), classes, dropout)


class ResNet50(_ResNet):
    """The network of OpenOOD's ImageNet-1K benchmark.

    Args:
        classes: The number of outputs.
        dropout: If positive, dropout before the last layer (for MC-Dropout).

    Example:
        >>> sum(p.numel() for p in ResNet50(1000).parameters())
        25557032
    """

    def __init__(self, classes: int = 1000, *, dropout: float = 0.0) -> None:
        super().__init__(_Bottleneck, (3, 4, 6, 3), classes, dropout)
