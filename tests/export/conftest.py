"""A small transformer on the bars, trained once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).reshape(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """Sixteen patches, a class token, two blocks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@pytest.fixture(autouse=True)
def exports_are_quick(one_registry: None) -> None:
    """All tests of this folder export."""


@pytest.fixture(scope="session")
def vit(images: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallViT()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            optimiser.zero_grad()
            nn.functional.cross_entropy(
                model(images.test[0][:300]), images.test[1][:300]
            ).backward()
            optimiser.step()
        return model.eval()
