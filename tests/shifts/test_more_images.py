"""Kinds beyond those of the recipes: fractals, exchanged bands, two images cut together."""

import pytest
import torch
from tests.shifts.test_images import apply, images

from tulip_ood.shifts.bands import bands
from tulip_ood.shifts.cut_together import cut_together
from tulip_ood.shifts.fractal import fractal
from tulip_ood.shifts.kinds import IMAGES, kinds_for


def test_cut_together_has_halves_of_two_images() -> None:
    x = images(5, 2, 4, 6)
    for at, mixed in enumerate(apply(cut_together, x)):
        assert torch.equal(mixed[..., :3], x[at, ..., :3])
        others = [i for i, other in enumerate(x) if torch.equal(mixed[..., 3:], other[..., 3:])]
        assert len(others) == 1
        assert others[0] != at


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bands_moves_quarters_of_a_channels_range_whole(seed: int) -> None:
    x = images(3, 2, 8, 8)
    out = apply(bands, x, seed)
    for channel in range(2):
        low, high = x[:, channel].min(), x[:, channel].max()
        for before, after in zip(x[:, channel], out[:, channel], strict=True):
            inner = before < high  # the largest value lies on the rim of its band
            place = 4 * (before[inner] - low) / (high - low)
            moved = 4 * (after[inner] - low) / (high - low)
            torch.testing.assert_close(place - place.floor(), moved - moved.floor())
            pairs = set(zip(place.floor().tolist(), moved.floor().tolist(), strict=True))
            assert len(pairs) == 4  # one new band for each old one
            assert {new for _, new in pairs} == {0.0, 1.0, 2.0, 3.0}


def test_bands_of_a_flat_image_stay_in_its_range() -> None:
    x = torch.full((2, 1, 4, 4), 0.5, dtype=torch.float64)
    torch.testing.assert_close(apply(bands, x), x)


def test_fractal_has_only_colours_of_its_image_and_many_levels() -> None:
    x = images(4, 3, 24, 24)
    levels = []
    for before, after in zip(x, apply(fractal, x, seed=3), strict=True):
        known = {tuple(p) for p in before.flatten(1).T.tolist()}
        found = {tuple(p) for p in after.flatten(1).T.tolist()}
        assert found <= known
        levels.append(len(found))
    assert min(levels) >= 4


def test_the_recipes_kinds_did_not_change() -> None:
    assert kinds_for("images") == tuple(IMAGES)[:7]
    assert list(IMAGES)[-3:] == ["fractal", "bands", "cut_together"]
