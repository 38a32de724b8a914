"""Small networks, trained once for the whole session, that every room's tests share."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.detectors.tuning import SearchSpace

# Networks this small gain nothing from a second thread, and two workers share the cores.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Problem:
    """A trained network with validation, test and OOD inputs."""

    model: nn.Module
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood: Tensor

    def loader(self, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
        x, y = self.val
        return [(x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)]


def train(model: nn.Module, x: Tensor, y: Tensor, *, steps: int = 150, lr: float = 0.01) -> None:
    """Full-batch Adam: enough to make a small network accurate and over-confident."""
    loss_of = nn.MSELoss() if y.is_floating_point() else nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of(model(x), y).backward()
        optimiser.step()
    model.eval()
    for parameter in model.parameters():
        parameter.grad = None


def blobs(n: int, generator: torch.Generator, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Overlapping Gaussian blobs on a circle, in two dimensions."""
    y = torch.randint(classes, (n,), generator=generator)
    angle = 2 * torch.pi * y / classes
    centre = 2.0 * torch.stack([angle.cos(), angle.sin()], dim=1)
    return centre + torch.randn(n, 2, generator=generator), y


def bars(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """8 × 8 images with one bright row: the class is which quarter it lies in."""
    row = torch.randint(8, (n,), generator=generator)
    x = 0.7 * torch.randn(n, 1, 8, 8, generator=generator)
    x[torch.arange(n), 0, row] += 1.0
    return x, row // 2


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 4),
    )


@pytest.fixture(scope="session")
def vectors() -> Problem:
    """An over-confident MLP on overlapping blobs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        model = mlp()
        train(model, *blobs(150, generator), steps=300)
        far = torch.randn(300, 2, generator=generator) * 6
        return Problem(model, blobs(600, generator), blobs(600, generator), far)


@pytest.fixture(scope="session")
def images() -> Problem:
    """An over-confident CNN with BatchNorm on noisy bars."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(1)
        model = cnn()
        train(model, *bars(300, generator), steps=80)
        columns = bars(300, generator)[0].transpose(2, 3).contiguous()
        return Problem(model, bars(500, generator), bars(500, generator), columns)


@pytest.fixture(scope="module")
def short_search() -> Iterator[None]:
    """Self-tuning tries 2 × 2 × 4 settings, not 4 × 5 × 11: for tests of what comes after it.

    How it chooses among all of them is tested in `detectors/test_recipes.py`, `test_choices.py` and
    `test_same_score.py`.
    """
    few = {"epsilon": (0.002, 0.005), "balance": (0.0, 1.0), "j": (0.0, 1.0, 2.0)}
    usual = SearchSpace()
    short = usual.restricted({**few, "j_scaling": (1.0,)})
    with pytest.MonkeyPatch.context() as patch:
        # A dataclass has its defaults in the signature of `__init__`.
        patch.setattr(SearchSpace.__init__, "__defaults__", tuple(vars(short).values()))
        assert SearchSpace() == short != usual
        yield


@pytest.fixture(scope="session")
def one_registry() -> Iterator[None]:
    """PyTorch reads the source of all its ONNX operators for every export: here, once for all."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = ONNXRegistry.from_torchlib
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(read))
    yield
    ONNXRegistry.from_torchlib = read
