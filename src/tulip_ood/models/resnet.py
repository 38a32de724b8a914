"""ResNet-18 for 32 × 32 images, with OpenOOD's layout and names."""

import torch
from torch import Tensor, nn

__all__ = ["ResNet18Small"]


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions around a shortcut.

    Example:
        >>> BasicBlock(64, 128, 2)(torch.zeros(1, 64, 8, 8)).shape
        torch.Size([1, 128, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features in, features out."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.shortcut(x))


class ResNet18Small(nn.Module):
    """The network of OpenOOD's CIFAR benchmarks: a 3 × 3 stem of stride 1, no max-pool.

    Args:
        classes: The number of outputs.
        dropout: If positive, dropout before the last layer (for MC-Dropout).

    Example:
        >>> net = ResNet18Small(10)
        >>> sum(p.numel() for p in net.parameters())
        11173962
    """

    def __init__(self, classes: int = 10, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self._stage(64, 64, 1)
        self.layer2 = self._stage(64, 128, 2)
        self.layer3 = self._stage(128, 256, 2)
        self.layer4 = self._stage(256, 512, 2)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.fc = nn.Linear(512, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, 3, 32, 32] to logits [N, classes]."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.dropout(x.mean(dim=(2, 3)))
        logits: Tensor = self.fc(x)
        return logits
