"""The images of `segmentation.py`: shapes of random colours on a cloudy ground."""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32
KNOWN, FOREIGN = ("disc", "square"), ("ring", "star", "cross")


def shape(kind: str, n: int) -> Tensor:
    """n masks [n, SIDE, SIDE] of a shape, each at a random place, as large and turned by chance."""
    row, column = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
    r, turn = torch.empty(n, 1, 1).uniform_(4, 7), torch.empty(n, 1, 1).uniform_(-0.3, 0.3)
    x, y = (place - torch.empty(n, 1, 1).uniform_(7, SIDE - 7) for place in (column, row))
    x, y = x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos()
    radius, inner, outer = (
        torch.hypot(x, y),
        torch.minimum(x.abs(), y.abs()),
        torch.maximum(x.abs(), y.abs()),
    )
    return {
        "disc": radius < r,
        "square": outer < 0.85 * r,
        "ring": (radius < 1.1 * r) & (radius > 0.55 * r),
        "star": radius < r * (0.75 + 0.45 * torch.cos(5 * torch.atan2(y, x))),
        "cross": (inner < 0.35 * r) & (outer < r),
    }[kind]


def scenes(n: int, foreign: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Images, classes (0 background, 1 disc, 2 square), and where the foreign object lies."""
    image = torch.empty(n, 3, 1, 1).uniform_(0.1, 0.4)
    image = image + 0.1 * F.interpolate(torch.randn(n, 3, 7, 7), size=SIDE, mode="bilinear")
    label = torch.zeros(n, SIDE, SIDE, dtype=torch.int64)
    odd = torch.zeros_like(label, dtype=torch.bool)
    for kind in (*KNOWN, *([foreign] if foreign else [])):
        mask, colour = shape(kind, n), torch.empty(n, 3, 1, 1).uniform_(0.5, 1.0)
        image = torch.where(mask[:, None], colour, image)
        label[mask] = 1 + KNOWN.index(kind) if kind in KNOWN else 0
        odd |= mask & (kind == foreign)
    return image + 0.05 * torch.randn_like(image), label, odd
