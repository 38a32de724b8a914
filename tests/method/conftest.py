"""Three small smooth float64 networks, over-confident on purpose, for the method's mathematics."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Small:
    """A trained network with labelled validation inputs and some others."""

    name: str
    model: nn.Module
    x_val: Tensor
    y_val: Tensor
    x_new: Tensor


class TinyTransformer(nn.Module):
    """One pre-norm block with two heads over a short sequence of vectors."""

    def __init__(self, width: int = 4, d: int = 8, length: int = 3, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(width, d)
        self.position = nn.Parameter(0.1 * torch.randn(length, d))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.mix = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.position
        q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)
        h = h + self.mix((attention @ v).transpose(1, 2).flatten(2))
        h = h + self.down(nn.functional.gelu(self.up(self.norm2(h))))
        return self.head(self.norm3(h).mean(dim=1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 3),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4,)),
    "cnn": (cnn, (1, 6, 6)),
    "transformer": (TinyTransformer, (3, 4)),
}


def build(name: str, validation: int = 120) -> Small:
    """Trained beyond what its 150 noisily labelled inputs tell: sure of itself, often wrong."""
    make, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        directions = torch.randn((*shape, 3), generator=generator, dtype=torch.float64)

        def draw(n: int) -> tuple[Tensor, Tensor]:
            x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
            evidence = 1.5 * x.flatten(1) @ directions.flatten(0, -2)
            y = torch.multinomial(evidence.softmax(-1), 1, generator=generator).squeeze(1)
            return x, y

        model = make().double()
        x, y = draw(150)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(80):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        model.eval().requires_grad_(False)
        return Small(name, model, *draw(validation), 1.5 * draw(12)[0])


@pytest.fixture(scope="session", params=list(NETWORKS))
def small(request: pytest.FixtureRequest) -> Small:
    """Each of the three networks in turn."""
    return build(request.param)
