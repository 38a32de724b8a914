"""Mild changes of images, after which a network should still answer as before.

Each image is changed by a strength of its own, from nothing to moderately. Where a network still
answers rightly, whatever a score says of the changed image is no evidence against an input.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tulip_ood.numerics.random import normal, uniform

__all__ = [
    "MILD",
    "can_be_mild",
    "mild_blur",
    "mild_contrast",
    "mild_haze",
    "mild_light",
    "mild_noise",
    "mild_resolution",
]

_SIDE = 32  # lengths are written for images of this side, and grow with the image
_BLOBS = 4  # of haze, along a side


def mild_noise(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """x + Gaussian noise of up to a twelfth of the channel's range.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 1, 4, 4)
        >>> mild_noise(x, x.amin(), x.amin() + 1, seed=0).abs().max() < 0.4
        tensor(True)
    """
    drawn = normal(x.shape, seed=seed, name="mild_noise").to(x.dtype)
    return x + _strength(x, "mild_noise", seed) / 12 * (high - low) * drawn


def mild_blur(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Between x and x blurred three times over a thirty-second of the side on either hand.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 1, 8, 8)
        >>> bool(mild_blur(x, x.amin(), x.amax(), seed=0).std() < x.std())
        True
    """
    reach = max(1, round(min(x.shape[-2:]) / _SIDE))
    blurred = x
    for _ in range(3):
        wide = F.pad(blurred, [reach] * 4, mode="replicate")
        for window in ((2 * reach + 1, 1), (1, 2 * reach + 1)):  # a square costs far more
            wide = F.avg_pool2d(wide, window, stride=1)
        blurred = wide
    return x + _strength(x, "mild_blur", seed) * (blurred - x)


def mild_contrast(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Towards the image's mean, by up to three fifths of the way.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 1, 8, 8)
        >>> bool(mild_contrast(x, x.amin(), x.amax(), seed=0).std() < x.std())
        True
    """
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return x + 0.6 * _strength(x, "mild_contrast", seed) * (mean - x)


def mild_light(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Brighter or darker, by up to a quarter of the channel's range.

    Example:
        >>> import torch
        >>> x = torch.full((1, 1, 2, 2), 0.5)
        >>> changed = mild_light(x, torch.tensor(0.0), torch.tensor(1.0), seed=0)
        >>> bool((changed - x).abs().max() <= 0.25)
        True
    """
    return x + (high - low) * (_strength(x, "mild_light", seed) - 0.5) / 2


def mild_haze(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Behind uneven grey haze that hides up to two fifths of the image.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 1, 8, 8)
        >>> bool(mild_haze(x, x.amin(), x.amin() + 1, seed=0).max() <= 0.4)
        True
    """
    blobs = uniform((len(x), 1, _BLOBS, _BLOBS), seed=seed, name="mild_haze/blobs").to(x.dtype)
    haze = F.interpolate(blobs, size=x.shape[-2:], mode="bilinear", align_corners=False)
    hidden = 0.4 * _strength(x, "mild_haze", seed)
    return x + hidden * (low + (high - low) * haze - x)


def mild_resolution(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Between x and x at half its resolution.

    Example:
        >>> import torch
        >>> x = torch.rand(1, 1, 8, 8)
        >>> bool(mild_resolution(x, x.amin(), x.amax(), seed=0).std() < x.std())
        True
    """
    height, width = x.shape[-2:]
    half = F.interpolate(x, size=(max(1, height // 2), max(1, width // 2)), mode="area")
    back = F.interpolate(half, size=(height, width), mode="bilinear", align_corners=False)
    return x + _strength(x, "mild_resolution", seed) * (back - x)


def can_be_mild(x: Tensor) -> bool:
    """Whether inputs are images that can be changed mildly: real numbers or bytes, four axes.

    Example:
        >>> can_be_mild(torch.zeros(2, 3, 8, 8)), can_be_mild(torch.zeros(2, 8))
        (True, False)
    """
    return x.ndim == 4 and (x.is_floating_point() or x.dtype == torch.uint8)


def _strength(x: Tensor, name: str, seed: int) -> Tensor:
    drawn = uniform((len(x), 1, 1, 1), seed=seed, name=f"{name}/strength")
    return drawn.to(x.dtype)


MILD: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    change.__name__: change
    for change in (mild_noise, mild_blur, mild_contrast, mild_light, mild_haze, mild_resolution)
}
"""All mild changes, by name."""
