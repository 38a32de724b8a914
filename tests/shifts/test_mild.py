"""Mild changes: each image by a strength of its own, within the range of the data."""

import pytest
import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform
from tulip_ood.shifts.kinds import Range, shift
from tulip_ood.shifts.mild import MILD, mild_blur


def images(n: int = 40, side: int = 16) -> Tensor:
    torch.manual_seed(0)
    coarse = torch.rand(n, 3, 4, 4, dtype=torch.float64)
    return torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")


@pytest.mark.parametrize("kind", MILD)
def test_from_nothing_to_moderately(kind: str) -> None:
    x = images()
    changed = shift(x, kind, seed=0)
    assert isinstance(changed, Tensor)
    moved = (changed - x).abs().mean(dim=(1, 2, 3)) / (x.amax() - x.amin())
    assert moved.min() < 0.25 * moved.max()
    assert 0 < moved.max() < 0.3
    assert torch.equal(shift(x, kind, seed=0), changed)  # type: ignore[arg-type]
    assert not torch.equal(shift(x, kind, seed=1), changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MILD)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_stays_what_it_was(kind: str, dtype: torch.dtype) -> None:
    x = (255 * images()).to(dtype)
    changed = shift(x, kind, seed=0)
    assert isinstance(changed, Tensor)
    assert (changed.dtype, changed.shape) == (x.dtype, x.shape)
    limits = Range.of(x)
    assert bool((changed >= limits.low - 1).all())
    assert bool((changed <= limits.high + 1).all())


@pytest.mark.parametrize("kind", MILD)
def test_colours_may_come_last(kind: str) -> None:
    x, within = images(), Range(torch.tensor(0.0), torch.tensor(1.0))
    first, last = (shift(y, kind, seed=0, within=within) for y in (x, x.movedim(1, -1)))
    assert isinstance(first, Tensor)
    assert isinstance(last, Tensor)
    torch.testing.assert_close(last.movedim(-1, 1), first)


def test_lengths_grow_with_the_image() -> None:
    small, large = images(side=32), images(side=128)
    one, other = (shift(x, "mild_blur", seed=0) for x in (small, large))
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    moved, moved_more = (one - small).abs().mean(), (other - large).abs().mean()
    assert 0.5 * moved < moved_more < 2 * moved


def test_blur_is_that_of_a_square_window() -> None:
    x, within = images(side=64), Range(torch.tensor(0.0), torch.tensor(1.0))
    wide = x
    for _ in range(3):
        padded = torch.nn.functional.pad(wide, [2] * 4, mode="replicate")
        wide = torch.nn.functional.avg_pool2d(padded, 5, stride=1)
    strength = uniform((len(x), 1, 1, 1), seed=0, name="mild_blur/strength")
    made = mild_blur(x, within.low, within.high, seed=0)
    torch.testing.assert_close(made, x + strength * (wide - x))
