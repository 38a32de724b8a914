"""Each kind of pseudo-OOD for images against its definition in the contract.

The kinds are called as they are, before the clamping to the validation range (see test_kinds).
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from tulip_ood.numerics.random import uniform
from tulip_ood.shifts.average import average, partner
from tulip_ood.shifts.blur import blur
from tulip_ood.shifts.corner import corner
from tulip_ood.shifts.dead_leaves import dead_leaves
from tulip_ood.shifts.grating import grating
from tulip_ood.shifts.kinds import Range
from tulip_ood.shifts.negative import negative
from tulip_ood.shifts.noise import noise
from tulip_ood.shifts.patches import patches
from tulip_ood.shifts.random_phase import random_phase
from tulip_ood.shifts.spectrum_noise import spectrum_noise
from tulip_ood.shifts.tile import tile
from tulip_ood.shifts.tiny_patch import tiny_patch
from tulip_ood.shifts.upside_down import upside_down


def images(*shape: int, seed: int = 0) -> Tensor:
    """Random images, every channel with a level and a range of its own."""
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    channel = torch.arange(shape[1], dtype=torch.float64).reshape(1, -1, 1, 1)
    return (channel + 1) * x - channel


def apply(kind: Callable[..., Tensor], x: Tensor, seed: int = 0) -> Tensor:
    limits = Range.of(x)
    return kind(x, limits.low, limits.high, seed)


def windows(x: Tensor, h: int, w: int) -> list[Tensor]:
    """Every h × w patch of one image [C, H, W]."""
    height, width = x.shape[1:]
    places = itertools.product(range(height - h + 1), range(width - w + 1))
    return [x[:, i : i + h, j : j + w] for i, j in places]


def bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """[C, h, w] enlarged, pixel centres aligned, edges repeated: written out."""
    c, h, w = x.shape
    out = torch.zeros(c, height, width, dtype=x.dtype)
    for i, j in itertools.product(range(height), range(width)):
        y = min(max((i + 0.5) * h / height - 0.5, 0.0), h - 1.0)
        z = min(max((j + 0.5) * w / width - 0.5, 0.0), w - 1.0)
        top, left = math.floor(y), math.floor(z)
        below, right = min(top + 1, h - 1), min(left + 1, w - 1)
        fy, fz = y - top, z - left
        out[:, i, j] = (
            (1 - fy) * (1 - fz) * x[:, top, left]
            + (1 - fy) * fz * x[:, top, right]
            + fy * (1 - fz) * x[:, below, left]
            + fy * fz * x[:, below, right]
        )
    return out


# ---------------------------------------------------------------- the first seven, of self-1


@pytest.mark.parametrize("n", [2, 3, 10, 57])
def test_partners_are_one_cycle_through_all_rows(n: int) -> None:
    other = partner(n, 0, "x").tolist()
    seen, row = [], 0
    for _ in range(n):
        seen.append(row)
        row = other[row]
    assert row == 0
    assert sorted(seen) == list(range(n))


def test_average_is_half_of_an_image_and_half_of_another() -> None:
    x = images(5, 3, 4, 6)
    for row, mixed in zip(x, apply(average, x), strict=True):
        halves = [torch.equal(mixed, (row + other) / 2) for other in x]
        assert sum(halves) == 1
        assert not torch.equal(mixed, row)


def test_average_of_a_single_image_is_itself() -> None:
    x = images(1, 3, 4, 4)
    assert torch.equal(apply(average, x), x)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 12), (9, 15)])
def test_patches_are_a_permuted_grid_of_four_by_four(height: int, width: int) -> None:
    """Every patch of the grid is there once, whole; a rim that the grid leaves over stays."""
    x = images(6, 2, height, width)
    h, w = height // 4, width // 4
    orders = set()
    for before, after in zip(x, apply(patches, x), strict=True):
        cells = [(i * h, j * w) for i in range(4) for j in range(4)]
        source = [before[:, i : i + h, j : j + w] for i, j in cells]
        target = [after[:, i : i + h, j : j + w] for i, j in cells]
        order = [
            next(k for k, patch in enumerate(source) if torch.equal(patch, moved))
            for moved in target
        ]
        assert sorted(order) == list(range(16))
        orders.add(tuple(order))
        assert torch.equal(after[:, 4 * h :], before[:, 4 * h :])
        assert torch.equal(after[:, :, 4 * w :], before[:, :, 4 * w :])
    assert len(orders) == 6  # another order for every image
    assert tuple(range(16)) not in orders


def test_negative_mirrors_each_channel_in_its_own_range() -> None:
    x = images(3, 2, 4, 5)
    out = apply(negative, x)
    for c in range(2):
        low, high = float(x[:, c].min()), float(x[:, c].max())
        torch.testing.assert_close(out[:, c], low + high - x[:, c])
        assert float(out[:, c].min()) == pytest.approx(low)
        assert float(out[:, c].max()) == pytest.approx(high)


def test_noise_is_gaussian_with_a_fifth_of_each_channels_range() -> None:
    x = images(8, 3, 40, 50)
    added = apply(noise, x) - x
    limits = Range.of(x)
    for c in range(3):
        sigma = 0.2 * float(limits.high[0, c] - limits.low[0, c])
        unit = (added[:, c] / sigma).flatten().numpy()
        assert stats.kstest(unit, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(added[:, 0].flatten(), added[:, 1].flatten())[0, 1]) < 0.04


def test_upside_down_is_half_a_turn() -> None:
    x = images(2, 3, 4, 7)
    out = apply(upside_down, x)
    assert torch.equal(out, torch.rot90(x, 2, dims=(2, 3)))
    assert torch.equal(apply(upside_down, out), x)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 8), (8, 16), (12, 20)])
def test_blur_is_the_mean_of_blocks_enlarged(height: int, width: int) -> None:
    """Area-downscaled to a quarter of each side (4 × 4 blocks), bilinear back."""
    x = images(2, 3, height, width)
    small = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).mean(dim=(3, 5))
    assert small.shape == (2, 3, height // 4, width // 4)
    expected = torch.stack([bilinear(image, height, width) for image in small])
    torch.testing.assert_close(apply(blur, x), expected)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (6, 8), (7, 9)])
def test_corner_is_the_enlarged_top_left_quarter(height: int, width: int) -> None:
    x = images(2, 3, height, width)
    quarter = x[..., : height // 2, : width // 2]
    expected = torch.stack([bilinear(image, height, width) for image in quarter])
    torch.testing.assert_close(apply(corner, x), expected)


# ----------------------------------------------------------------------------- the other six


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 8), (9, 14)])
def test_tile_repeats_a_patch_of_a_quarter_of_the_side(height: int, width: int) -> None:
    x = images(4, 3, height, width)
    h, w = height // 4, width // 4
    for before, after in zip(x, apply(tile, x), strict=True):
        patch = after[:, :h, :w]
        assert any(torch.equal(patch, window) for window in windows(before, h, w))
        for i, j in itertools.product(range(height), range(width)):
            assert torch.equal(after[:, i, j], patch[:, i % h, j % w])


@pytest.mark.parametrize(
    ("height", "width", "h", "w"), [(12, 18, 2, 3), (4, 4, 1, 1), (7, 13, 1, 2)]
)
def test_tiny_patch_is_a_sixth_of_the_side_enlarged(
    height: int, width: int, h: int, w: int
) -> None:
    x = images(4, 3, height, width)
    for before, after in zip(x, apply(tiny_patch, x), strict=True):
        candidates = torch.stack(windows(before, h, w))
        enlarged = F.interpolate(candidates, size=(height, width), mode="bicubic")
        distance = (enlarged - after).abs().amax(dim=(1, 2, 3))
        assert float(distance.min()) < 1e-12


@pytest.mark.parametrize("kind", [tile, tiny_patch])
def test_patches_are_taken_from_everywhere(kind: Callable[..., Tensor]) -> None:
    """Over 400 images whose pixels are their places, rows and columns are drawn uniformly."""
    rows = torch.arange(8.0).reshape(1, 1, 8, 1).expand(400, 1, 8, 8)
    for x in (rows, rows.mT):
        corner_of = apply(kind, x.contiguous())[:, 0, 0, 0].round().long()
        side = 7 if kind is tile else 8  # 8 − 2 + 1 or 8 − 1 + 1 places for a patch
        assert stats.chisquare(torch.bincount(corner_of, minlength=side).numpy()).pvalue > 1e-3


def test_spectrum_noise_has_the_images_means_and_deviations() -> None:
    x = images(3, 3, 16, 20)
    out = apply(spectrum_noise, x)
    torch.testing.assert_close(out.mean(dim=(2, 3)), x.mean(dim=(2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.std(dim=(2, 3)), x.std(dim=(2, 3)), rtol=1e-5, atol=1e-5)
    assert abs(np.corrcoef(out[:, 0].flatten(), x[:, 0].flatten())[0, 1]) < 0.15


def test_spectrum_noise_falls_as_a_power_of_the_frequency() -> None:
    """The amplitude goes as f^−α with each image's own α ~ U(.5, 2.5), also when not square."""
    n, height, width = 24, 48, 64
    out = apply(spectrum_noise, images(n, 1, height, width), seed=4)
    alpha = (0.5 + 2 * uniform((n, 1, 1, 1), seed=4, name="spectrum_noise/alpha")).flatten()
    fy = torch.fft.fftfreq(height).unsqueeze(1)
    fx = torch.fft.rfftfreq(width).unsqueeze(0)
    frequency = (fy.square() + fx.square()).sqrt()
    used = (frequency > 0.05) & (frequency < 0.5)
    found = []
    for image in out:
        amplitude = torch.fft.rfft2(image[0]).abs()
        log_f, log_a = frequency[used].log().numpy(), amplitude[used].log().numpy()
        found.append(-np.polyfit(log_f, log_a, 1)[0])
    np.testing.assert_allclose(found, alpha.numpy(), atol=0.12)
    assert 0.5 <= float(alpha.min()) < 0.8
    assert 2.2 < float(alpha.max()) <= 2.5


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 8), (9, 7), (6, 11)])
def test_random_phase_keeps_amplitudes_and_means_and_changes_phases(
    height: int, width: int
) -> None:
    x = images(3, 2, height, width)
    out = apply(random_phase, x)
    before, after = torch.fft.rfft2(x), torch.fft.rfft2(out)
    torch.testing.assert_close(after.abs(), before.abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.mean(dim=(2, 3)), x.mean(dim=(2, 3)), rtol=1e-5, atol=1e-5)
    assert float((out - x).abs().max()) > 0.1


def test_random_phases_are_uniform_and_new_for_every_channel() -> None:
    out = apply(random_phase, images(2, 2, 64, 64))
    phase = torch.fft.rfft2(out).angle()[..., 1:32]  # columns without symmetric partners
    unit = ((phase + math.pi) / (2 * math.pi)).flatten().numpy()
    assert stats.kstest(unit, "uniform").pvalue > 1e-3
    rotation = (phase[:, 0] - phase[:, 1]).cos().mean()
    assert abs(float(rotation)) < 0.05


def test_dead_leaves_has_only_colours_of_the_image_and_its_mean() -> None:
    x = images(4, 3, 16, 12)
    for before, after in zip(x, apply(dead_leaves, x), strict=True):
        colours = {tuple(c) for c in before.flatten(1).T.tolist()}
        colours.add(tuple(before.mean(dim=(1, 2)).tolist()))
        used = {tuple(c) for c in after.flatten(1).T.tolist()}
        assert used <= colours
        assert 3 <= len(used) <= 61


def test_dead_leaves_are_discs_one_over_another() -> None:
    """Sixty discs of radius .05·S/U(.1, 1) painted in order, pixel by pixel."""
    x = images(2, 1, 20, 16)
    out = apply(dead_leaves, x, seed=2)
    n, side = 2, 20

    def draw(name: str) -> Tensor:
        return uniform((n, 60), seed=2, name=f"leaves/{name}")

    radius = 0.05 * side / (0.1 + 0.9 * draw("radius"))
    assert float(radius.min()) >= 0.05 * side
    assert float(radius.max()) <= 0.5 * side
    tops, lefts = 20 * draw("y"), 16 * draw("x")
    for image in range(n):
        covered = [
            [
                k
                for k in range(60)
                if (i - float(tops[image, k])) ** 2 + (j - float(lefts[image, k])) ** 2
                <= float(radius[image, k]) ** 2
            ]
            for i, j in itertools.product(range(20), range(16))
        ]
        last = [discs[-1] if discs else -1 for discs in covered]
        painted = out[image, 0].flatten().tolist()
        by_disc: dict[int, set[float]] = {}
        for k, colour in zip(last, painted, strict=True):
            by_disc.setdefault(k, set()).add(colour)
        assert all(len(colours) == 1 for colours in by_disc.values())
        assert len(by_disc) > 8


@pytest.mark.parametrize("seed", range(3))
def test_grating_is_a_sine_between_two_colours(seed: int) -> None:
    x = images(5, 3, 64, 64)
    out = apply(grating, x, seed=seed)
    for before, after in zip(x, out, strict=True):
        # In all channels the same mixture of two of the image's pixels.
        flat = after.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        singular = torch.linalg.svdvals(centred)
        assert float(singular[1]) < 1e-6 * float(singular[0])
        channel = int(centred.abs().amax(dim=1).argmax())
        low, high = float(flat[channel].min()), float(flat[channel].max())
        pixels = before[channel].flatten()
        span = high - low
        assert bool((pixels <= low + 0.02 * span).any())
        assert bool((pixels >= high - 0.02 * span).any())
        # One wave: nearly all of its power lies around one frequency of 1 to 12 cycles.
        window = torch.hann_window(64, periodic=False, dtype=torch.float64)
        wave = (flat[channel] - (low + high) / 2).reshape(64, 64) * window * window.unsqueeze(1)
        power = torch.fft.fft2(wave).abs().square()
        cycles = torch.fft.fftfreq(64) * 63
        length = (cycles.square().unsqueeze(1) + cycles.square()).sqrt()
        peak = int(power.argmax())
        assert 0 <= float(length.flatten()[peak]) <= 13
        row, column = divmod(peak, 64)
        near = torch.zeros_like(power)
        for sign in (1, -1):
            for i, j in itertools.product(range(-3, 4), repeat=2):
                near[(sign * row + i) % 64, (sign * column + j) % 64] = 1
        assert float((power * near).sum() / power.sum()) > 0.98


def test_grating_has_one_to_twelve_cycles_in_all_directions() -> None:
    draws = uniform((300, 1, 1, 1), seed=1, name="grating/cycles")
    assert stats.kstest(draws.flatten().numpy(), "uniform").pvalue > 1e-3
    x = torch.zeros(60, 1, 32, 32, dtype=torch.float64)
    x[:, :, ::2] = 1.0  # half of the pixels dark, half bright
    out = apply(grating, x, seed=1)
    varied = out[out.amax(dim=(1, 2, 3)) > out.amin(dim=(1, 2, 3))]
    assert len(varied) > 20
    # A vertical wave has equal rows, a horizontal one equal columns; here are all between.
    across = varied.diff(dim=3).square().sum(dim=(1, 2, 3))
    along = varied.diff(dim=2).square().sum(dim=(1, 2, 3))
    angle = torch.atan2(along.sqrt(), across.sqrt())
    assert float(angle.min()) < 0.3
    assert float(angle.max()) > 1.2
