"""A small ResNet for 8 × 8 grey pictures, and its training: a stand-in for "your network".

Big networks are often over-confident, and so is this one: residual blocks with BatchNorm, trained
to the end by OpenOOD's recipe on few pictures.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tulip_ood.errors import InputError
from tulip_ood.models.resnet import BasicBlock
from tulip_ood.wording import counted

__all__ = ["DigitNet", "train_digit_net"]

_RATE, _MOMENTUM, _DECAY = 0.1, 0.9, 5e-4  # OpenOOD's, for CIFAR
_BATCH = 32


class DigitNet(nn.Module):
    """Three residual blocks of 32, 64 and 128 channels; the middle and last halve the picture.

    Args:
        classes: The number of outputs.
        dropout: If positive, dropout before the last layer (for MC-Dropout).

    Example:
        >>> import torch
        >>> DigitNet(8)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, classes: int = 10, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.blocks = nn.Sequential(
            BasicBlock(32, 32, 1), BasicBlock(32, 64, 2), BasicBlock(64, 128, 2)
        )
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, 1, 8, 8] to logits [N, classes]."""
        x = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(self.dropout(x.mean(dim=(2, 3))))
        return logits


def train_digit_net(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    epochs: int = 60,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DigitNet:
    """Train a `DigitNet`; the same seed gives the same network on one machine.

    The process's random state is left as it was.

    Args:
        images: [N, 1, 8, 8], values in 0…1.
        labels: [N], 0…classes−1.
        classes: The number of outputs.
        epochs: How often all pictures are seen.
        seed: Decides the first weights and the order of the pictures.
        progress: Called with (epochs done, epochs in all).

    Example:
        >>> import torch
        >>> x, y = torch.rand(16, 1, 8, 8), torch.arange(16) % 2
        >>> a = train_digit_net(x, y, classes=2, epochs=1, seed=3)
        >>> b = train_digit_net(x, y, classes=2, epochs=1, seed=3)
        >>> bool((a(x) == b(x)).all()), a.training
        (True, False)
    """
    n = len(images)
    if n < 2 or len(labels) != n:
        raise InputError(
            f"training needs labelled images, got {counted(n, 'image')}, "
            f"{counted(len(labels), 'label')}"
        )
    batch = min(_BATCH, n)
    steps = n // batch  # a rest smaller than a batch waits for the next epoch's order
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = DigitNet(classes).train()
        optimiser = torch.optim.SGD(
            net.parameters(), lr=_RATE, momentum=_MOMENTUM, weight_decay=_DECAY, nesterov=True
        )
        for epoch in range(epochs):
            order = torch.randperm(n)
            for step in range(steps):
                done = (epoch * steps + step) / (epochs * steps)
                optimiser.param_groups[0]["lr"] = _RATE * (1 + math.cos(math.pi * done)) / 2
                chosen = order[step * batch : (step + 1) * batch]
                optimiser.zero_grad()
                F.cross_entropy(net(images[chosen]), labels[chosen]).backward()
                optimiser.step()
            if progress is not None:
                progress(epoch + 1, epochs)
    return net.eval()
