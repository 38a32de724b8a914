"""A small staged network on images, and two more: what the network family's tests run on."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Staged(nn.Module):
    """Conv-BN-ReLU blocks in three stages, dropout, one linear layer."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(Block(1, 6), Block(6, 6))
        self.stage2 = nn.Sequential(Block(6, 8, 2), Block(8, 8))
        self.stage3 = nn.Sequential(Block(8, 24, 2), Block(24, 24))
        self.middle = nn.Dropout2d(0.2)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.middle(self.stage2(self.stage1(x))))
        out: Tensor = self.fc(self.drop(x.mean(dim=(2, 3))))
        return out


@dataclass(frozen=True)
class Setting:
    model: nn.Module
    others: tuple[nn.Module, ...]
    val: tuple[Tensor, Tensor]
    test: Tensor
    ood: Tensor

    def loader(self, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
        x, y = self.val
        return [(x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)]


def trained(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Staged()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(25):
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.eval()
    for parameter in model.parameters():
        parameter.grad = None
    return model
