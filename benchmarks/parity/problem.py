"""One small network and its data, and our scores: what every library is compared on."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tulip_ood.detectors
from tulip_ood.detectors.base import Detector
from tulip_ood.models.resnet import BasicBlock
from tulip_ood.numerics import random

CLASSES = 10
BATCH = 100


class SmallResNet(nn.Module):
    """A ResNet with OpenOOD's names, and the ways into it that OpenOOD's files expect."""

    feature_size = 64

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths, strides = (16, 16, 32, 48, 64), (1, 1, 2, 2)
        for i, stride in enumerate(strides):
            first = BasicBlock(widths[i], widths[i + 1], stride)
            second = BasicBlock(widths[i + 1], widths[i + 1], 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(first, second))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, CLASSES)

    def intermediate_forward(self, x: Tensor, layer_index: int) -> Tensor:
        """Maps after a stage."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for i in range(1, layer_index + 1):
            x = getattr(self, f"layer{i}")(x)
        return x

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features [N, 64]."""
        return self.avgpool(self.intermediate_forward(x, 4)).flatten(1)

    def forward(
        self, x: Tensor, return_feature: bool = False, return_feature_list: bool = False
    ) -> Any:
        """Logits, with the features where they are asked for."""
        features = self.features(x)
        logits = self.fc(features)
        return (logits, features) if return_feature else logits

    def get_fc(self) -> Any:
        """The last layer as arrays."""
        return self.fc.weight.detach().numpy(), self.fc.bias.detach().numpy()

    def get_fc_layer(self) -> nn.Linear:
        """The last layer."""
        return self.fc


@dataclass(frozen=True)
class Problem:
    """A trained network with training, validation and test data; the test data is part OOD."""

    net: SmallResNet
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: Tensor

    def logits(self, x: Tensor) -> Tensor:
        """In batches, without gradients."""
        with torch.no_grad():
            return torch.cat([self.net(part) for part in x.split(BATCH)])

    def features(self, x: Tensor) -> Tensor:
        """Likewise."""
        with torch.no_grad():
            return torch.cat([self.net.features(part) for part in x.split(BATCH)])

    @property
    def accuracy(self) -> float:
        """On the validation data."""
        return float((self.logits(self.val[0]).argmax(1) == self.val[1]).float().mean())


def make_problem(seed: int = 0) -> Problem:
    """Scikit-learn's digits in three channels; a tenth of the training labels is wrong."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    x = torch.cat([x, x.sqrt(), x.square()], dim=1) - 0.3
    y = torch.tensor(digits.target)
    order = random.permutation(len(x), seed=seed, name="parity")
    x, y = x[order], y[order]
    wrong = random.uniform((1000,), seed=seed, name="wrong labels") < 0.1
    noisy = torch.where(
        wrong, random.integers((1000,), CLASSES, seed=seed, name="labels"), y[:1000]
    )
    turned = x[1500:].transpose(2, 3)
    noise = 0.5 * random.normal((100, 3, 8, 8), seed=seed, name="noise")
    net = _train(x[:1000], noisy, seed)
    test = torch.cat([x[1500:], turned, noise]).contiguous()
    return Problem(net, (x[:1000], y[:1000]), (x[1000:1500], y[1000:1500]), test)


def _train(x: Tensor, y: Tensor, seed: int, epochs: int = 12) -> SmallResNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SmallResNet().train()
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(50):
                optimiser.zero_grad()
                F.cross_entropy(net(x[batch]), y[batch]).backward()
                optimiser.step()
    return net.eval().requires_grad_(True)


# ------------------------------------------------------------------------------ ours


@cache
def methods() -> dict[str, type[Detector]]:
    """Every detector that there is, by name, whether registered already or not."""
    found = {}
    for module in pkgutil.iter_modules(tulip_ood.detectors.__path__):
        for part in vars(importlib.import_module(f"tulip_ood.detectors.{module.name}")).values():
            if isinstance(part, type) and issubclass(part, Detector) and "name" in vars(part):
                found[part.name] = part
    return found


def ours(problem: Problem, method: str, settings: dict[str, Any]) -> Detector:
    """Our detector, having learned from all of the data that the libraries learn from.

    `fit` holds a part of the validation data back for its threshold; here that part is learned
    from as well, because the libraries do.
    """
    detector = methods()[method](problem.net, batch_size=BATCH, **settings)
    x, y = problem.train if detector.learns_from_data else problem.val
    detector.fit([problem.val])
    learner = detector._learner()
    for part in detector.engine.stream(
        zip(x.split(BATCH), y.split(BATCH), strict=True), detector._needs()
    ):
        learner.add(part)
    detector._state = learner.finish()
    return detector
