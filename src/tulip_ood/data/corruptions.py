"""Corruptions of images, made here: like those of CIFAR-10-C and ImageNet-C, but not the same.

The kinds and their five severities follow the idea of those sets; formulas and strengths are our
own. Lengths grow with the image (they are written for a side of 32). Whatever is random depends
on the kind, the seed and the row alone.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import normal, uniform

__all__ = ["CORRUPTIONS", "SEVERITIES", "blur", "corrupt"]

SEVERITIES = (1, 2, 3, 4, 5)
_SIDE = 32
_GREY = np.array([0.299, 0.587, 0.114])

Pixels = NDArray[np.float64]  # [H, W, 3] in [0, 1]


@dataclass(frozen=True)
class _Draw:
    """The random numbers of one image under one corruption."""

    kind: str
    seed: int
    row: int

    def normal(self, shape: tuple[int, ...]) -> Pixels:
        return self._plain(normal(shape, seed=self.seed, name=self._name, index=self.row))

    def uniform(self, shape: tuple[int, ...], what: str = "") -> Pixels:
        drawn = uniform(shape, seed=self.seed, name=self._name + what, index=self.row)
        return self._plain(drawn)

    @property
    def _name(self) -> str:
        return f"corruption/{self.kind}"

    @staticmethod
    def _plain(drawn: torch.Tensor) -> Pixels:
        return drawn.numpy().astype(np.float64)


def corrupt(
    image: NDArray[np.uint8], kind: str, severity: int, *, seed: int = 0, row: int = 0
) -> NDArray[np.uint8]:
    """An image under one corruption.

    Args:
        image: uint8 [H, W, 3].
        kind: One of `CORRUPTIONS`.
        severity: From 1 (hardly seen) to 5.
        seed: Of noise, fog and directions.
        row: Which image this is: another row has another noise.

    Returns:
        uint8 [H, W, 3].

    Example:
        >>> image = np.full((32, 32, 3), 100, dtype=np.uint8)
        >>> int(corrupt(image, "brightness", 3)[0, 0, 0])
        166
        >>> a = corrupt(image, "gaussian_noise", 1, row=0)
        >>> bool((a == corrupt(image, "gaussian_noise", 1, row=1)).all())
        False
    """
    if kind not in CORRUPTIONS:
        raise InputError(f"unknown corruption {kind!r}; known are {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"a severity is one of 1 to 5, got {severity!r}")
    strengths, apply = CORRUPTIONS[kind]
    return _bytes(apply(_pixels(image), strengths[severity - 1], _Draw(kind, seed, row)))


def blur(image: NDArray[np.uint8], sigma: float = 2.0) -> NDArray[np.uint8]:
    """An image under a Gaussian blur: Blur-ImageNet's, with its sigma of 2 pixels.

    Example:
        >>> image = np.zeros((9, 9, 3), dtype=np.uint8)
        >>> image[4, 4] = 255
        >>> int(blur(image, sigma=1)[4, 4, 0])
        41
    """
    if not (math.isfinite(sigma) and sigma > 0):
        raise InputError(f"sigma must be positive, got {sigma}")
    return _bytes(_gaussian(_pixels(image), sigma))


def _pixels(image: NDArray[np.uint8]) -> Pixels:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InputError(
            f"expected a uint8 image [H, W, 3], got {image.dtype} of shape {image.shape}"
        )
    return image.astype(np.float64) / 255


def _bytes(x: Pixels) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = np.rint(x.clip(0, 1) * 255).astype(np.uint8)
    return found


def _scale(x: Pixels) -> float:
    """How much longer lengths are than on an image of 32 × 32."""
    return float(min(x.shape[:2])) / _SIDE


# ------------------------------------------------------------------------- noise


def _gaussian_noise(x: Pixels, strength: float, draw: _Draw) -> Pixels:
    return x + strength * draw.normal(x.shape)


def _shot_noise(x: Pixels, strength: float, draw: _Draw) -> Pixels:
    """Poisson counts, `strength` photons for white; drawn by inverting the distribution."""
    rate, u = x * strength, draw.uniform(x.shape)
    chance = np.exp(-rate)
    reached, count = chance.copy(), np.zeros_like(x)
    for k in range(1, math.ceil(strength + 10 * math.sqrt(strength)) + 1):
        more = u >= reached
        if not more.any():
            break
        count += more
        chance = chance * rate / k
        reached += chance
    return count / strength


def _impulse_noise(x: Pixels, strength: float, draw: _Draw) -> Pixels:
    """Salt and pepper, in every channel for itself."""
    hit, salt = draw.uniform(x.shape) < strength, draw.uniform(x.shape, "/salt") < 0.5
    return np.where(hit, salt.astype(np.float64), x)


# -------------------------------------------------------------------------- blur


def _filtered(x: Pixels, kernel: NDArray[np.float64]) -> Pixels:
    """Every channel under one kernel; the image is mirrored at its edges."""
    high, wide = (side // 2 for side in kernel.shape)
    padded = np.pad(x, ((high, high), (wide, wide), (0, 0)), mode="symmetric")
    channels = torch.from_numpy(padded).permute(2, 0, 1)[:, None]
    found: Pixels = F.conv2d(channels, torch.from_numpy(kernel)[None, None])[:, 0].numpy()
    return found.transpose(1, 2, 0)


def _gaussian(x: Pixels, sigma: float) -> Pixels:
    reach = max(1, math.ceil(4 * sigma))
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    bell /= bell.sum()
    return _filtered(_filtered(x, bell[:, None]), bell[None, :])


def _gaussian_blur(x: Pixels, strength: float, _: _Draw) -> Pixels:
    return _gaussian(x, strength * _scale(x))


def _defocus_blur(x: Pixels, strength: float, _: _Draw) -> Pixels:
    """A disc; pixels at its edge count in part, so that small radii differ too."""
    radius = strength * _scale(x)
    reach = math.ceil(radius + 0.5)
    across = np.arange(-reach, reach + 1)
    distance = np.hypot(across[:, None], across[None, :])
    disc = (radius + 0.5 - distance).clip(0, 1)
    return _filtered(x, disc / disc.sum())


def _motion_blur(x: Pixels, strength: float, draw: _Draw) -> Pixels:
    """A straight line in a random direction."""
    half = strength * _scale(x) / 2
    angle = math.pi * float(draw.uniform((1,))[0])
    reach = math.ceil(half) + 1
    line = np.zeros((2 * reach + 1, 2 * reach + 1))
    for t in np.linspace(-half, half, 8 * reach + 1):
        down, right = reach + t * math.sin(angle), reach + t * math.cos(angle)
        i, j = int(down), int(right)
        a, b = down - i, right - j
        line[i : i + 2, j : j + 2] += np.outer([1 - a, a], [1 - b, b])
    return _filtered(x, line / line.sum())


# ----------------------------------------------------------------------- storage


def _pixelate(x: Pixels, strength: float, _: _Draw) -> Pixels:
    """Fewer pixels: `strength` of each side is left."""
    image = Image.fromarray(_bytes(x))
    small = (max(1, round(image.width * strength)), max(1, round(image.height * strength)))
    coarse = image.resize(small, Image.Resampling.BOX)
    return np.asarray(coarse.resize(image.size, Image.Resampling.NEAREST), np.float64) / 255


def _jpeg(x: Pixels, strength: float, _: _Draw) -> Pixels:
    held = io.BytesIO()
    Image.fromarray(_bytes(x)).save(held, "JPEG", quality=round(strength))
    return np.asarray(Image.open(held).convert("RGB"), np.float64) / 255


# ------------------------------------------------------------------------- light


def _brightness(x: Pixels, strength: float, _: _Draw) -> Pixels:
    """The brightest channel rises by `strength`; the hue stays."""
    value = x.max(axis=2, keepdims=True)
    risen = (value + strength).clip(0, 1)
    found: Pixels = np.where(value > 0, x * risen / np.maximum(value, 1e-9), risen)
    return found


def _contrast(x: Pixels, strength: float, _: _Draw) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    found: Pixels = mean + strength * (x - mean)
    return found


def _saturate(x: Pixels, strength: float, _: _Draw) -> Pixels:
    grey = (x @ _GREY)[..., None]
    found: Pixels = grey + strength * (x - grey)
    return found


def _fog(x: Pixels, strength: float, draw: _Draw) -> Pixels:
    """Bright clouds: noise of every size, the larger the stronger."""
    cloud = np.zeros(x.shape[:2])
    cells, weight = 2, 1.0
    while cells <= max(x.shape[:2]):
        grid = torch.from_numpy(draw.uniform((1, 1, cells, cells), f"/{cells}"))
        smooth = F.interpolate(grid, x.shape[:2], mode="bilinear", align_corners=True)
        cloud += weight * smooth[0, 0].numpy()
        cells, weight = 2 * cells, weight / 1.8
    cloud = (cloud - cloud.min()) / max(float(np.ptp(cloud)), 1e-9)
    share = strength * (0.5 + 0.5 * cloud[..., None])
    found: Pixels = x * (1 - share) + 0.9 * share
    return found


_Apply = Callable[[Pixels, float, _Draw], Pixels]
CORRUPTIONS: dict[str, tuple[tuple[float, float, float, float, float], _Apply]] = {
    "gaussian_noise": ((0.03, 0.05, 0.07, 0.09, 0.12), _gaussian_noise),
    "shot_noise": ((400, 200, 100, 60, 35), _shot_noise),
    "impulse_noise": ((0.01, 0.02, 0.04, 0.07, 0.11), _impulse_noise),
    "gaussian_blur": ((0.4, 0.6, 0.8, 1.0, 1.4), _gaussian_blur),
    "defocus_blur": ((0.7, 0.9, 1.2, 1.6, 2.1), _defocus_blur),
    "motion_blur": ((1.5, 2.5, 3.5, 5.0, 6.5), _motion_blur),
    "pixelate": ((0.9, 0.8, 0.7, 0.6, 0.5), _pixelate),
    "jpeg": ((75, 55, 35, 20, 12), _jpeg),
    "brightness": ((0.08, 0.16, 0.26, 0.36, 0.48), _brightness),
    "contrast": ((0.75, 0.6, 0.45, 0.3, 0.18), _contrast),
    "fog": ((0.2, 0.35, 0.5, 0.62, 0.75), _fog),
    "saturate": ((0.6, 0.3, 2.0, 3.5, 6.0), _saturate),
}
