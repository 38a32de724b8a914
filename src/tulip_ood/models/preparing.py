"""From another library's own transform to a `Preprocess`, or a refusal.

The settings are read, and then both are shown the same picture: whatever was misread (another
order of steps, a size that is rounded otherwise, channels that are swapped) shows in the numbers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tulip_ood.data.preprocess import CROP_ROUNDINGS, INTERPOLATIONS, Preprocess
from tulip_ood.errors import InputError, ModelError
from tulip_ood.models.extras import one_line
from tulip_ood.wording import counted

__all__ = [
    "check_same",
    "make_preprocess",
    "prepared",
    "refusal",
    "sample_picture",
    "square",
    "telling_picture",
]

# On average, in grey levels from 0 to 1. Measured: libraries that resize tensors, not pictures,
# round otherwise (0.00002); another interpolation makes 0.0045 or more, a pixel aside 0.03.
TOLERANCE = 0.002


def refusal(spec: str, why: str) -> ModelError:
    """What to raise where images cannot be prepared as the network's library does.

    Example:
        >>> print(refusal("timm:x", "images are padded"))
        timm:x prepares images in a way that cannot be repeated here: images are padded. Prepare \
them yourself (npz with floating x), and name the network by a function of your own \
(package.module:factory)
    """
    return ModelError(
        f"{spec} prepares images in a way that cannot be repeated here: {why}. Prepare them "
        f"yourself (npz with floating x), and name the network by a function of your own "
        f"(package.module:factory)"
    )


def square(sides: Any, spec: str, what: str) -> int:
    """The side of a square that a library writes as 224, [224] or (224, 224).

    Example:
        >>> square([224], "timm:x", "crop"), square((224, 224), "timm:x", "crop")
        (224, 224)
    """
    values = [sides] if isinstance(sides, int) else list(sides)
    if not values or len(set(values)) > 1 or not isinstance(values[0], int):
        raise refusal(spec, f"the {what} is {sides}, not a square")
    return values[0]


def make_preprocess(
    spec: str,
    *,
    resize: int | None,
    crop: int,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    squash: bool = False,
    crop_rounding: str = "even",
) -> Preprocess:
    """A `Preprocess` for three channels; what does not fit into one is refused.

    Example:
        >>> make_preprocess(
        ...     "timm:x", resize=235, crop=224, mean=[0.5] * 3, std=[0.5] * 3, interpolation="area"
        ... )
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: timm:x prepares images in a way that cannot be repeated here: \
it interpolates by 'area' (known are nearest, bilinear, bicubic, lanczos, box). Prepare them \
yourself (npz with floating x), and name the network by a function of your own \
(package.module:factory)
    """
    if interpolation not in INTERPOLATIONS:
        known = ", ".join(INTERPOLATIONS)
        raise refusal(spec, f"it interpolates by {interpolation!r} (known are {known})")
    if len(mean) != 3:
        raise refusal(spec, f"it takes {counted(len(mean), 'channel')}, not three")
    try:
        return Preprocess(
            resize,
            crop,
            tuple(map(float, mean)),
            tuple(map(float, std)),
            interpolation,
            squash,
            crop_rounding,
        )
    except InputError as error:
        raise refusal(spec, str(error)) from error


@functools.cache
def sample_picture() -> NDArray[np.uint8]:
    """Large shapes, fine stripes in both directions, and other things in each colour.

    Example:
        >>> sample_picture().shape
        (331, 418, 3)
    """
    y, x = np.mgrid[0:331, 0:418].astype(np.float64)
    shapes = np.sign(np.sin(x / 29 + 1)) * np.sign(np.sin(y / 23)) * 0.25
    fine = 0.12 * np.sin(1.9 * x + 0.3 * y) + 0.12 * np.sin(1.7 * y - 0.2 * x)
    slope = np.stack([x / 418, y / 331, (x + y) / 749], axis=-1) - 0.5
    picture = 0.5 + (shapes + fine)[..., None] * np.array([1.0, -0.7, 0.5]) + 0.4 * slope
    pixels: NDArray[np.uint8] = (255 * picture.clip(0, 1)).astype(np.uint8)
    return pixels


def prepared(preprocess: Preprocess, pixels: NDArray[np.uint8]) -> Tensor:
    """A picture as the network is given it, [C, H, W].

    Example:
        >>> half = Preprocess(64, 32, (0.5,) * 3, (0.2,) * 3)
        >>> prepared(half, sample_picture()).shape
        torch.Size([3, 32, 32])
    """
    return preprocess.normalise(preprocess.pixels(pixels)[None])[0]


def telling_picture(preprocess: Preprocess) -> NDArray[np.uint8]:
    """The sample picture, so wide that a crop rounded in the other way lies one pixel aside.

    Half of an odd margin is rounded alike by both rules every other time; then columns are left
    out until it is not. Squashed pictures have all one margin.

    Example:
        >>> telling_picture(Preprocess(256, 224, (0.5,) * 3, (0.2,) * 3)).shape
        (331, 418, 3)
        >>> telling_picture(Preprocess(232, 224, (0.5,) * 3, (0.2,) * 3)).shape
        (331, 416, 3)
    """
    picture = sample_picture()
    height, width = picture.shape[:2]
    if preprocess.crop is None or preprocess.squash:
        return picture
    side = preprocess.resize or height
    for wide in range(width, height, -1):
        margin = int(side * wide / height) - preprocess.crop
        if len({half(margin) for half in CROP_ROUNDINGS.values()}) > 1:
            return picture[:, :wide]
    return picture


def check_same(
    preprocess: Preprocess, theirs: Callable[[Image.Image], Tensor], spec: str
) -> Preprocess:
    """Refuse a `Preprocess` that does not make of a picture what the library's transform does.

    Args:
        preprocess: Ours.
        theirs: From an RGB picture to [3, H, W].
        spec: What the user wrote.

    Returns:
        The same `Preprocess`.

    Example:
        >>> half = Preprocess(64, 32, (0.5,) * 3, (0.2,) * 3)
        >>> check_same(half, lambda picture: prepared(half, np.asarray(picture)).flip(2), "timm:x")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: timm:x prepares images in a way that cannot be repeated here: \
a test picture comes out otherwise, by 28 of 255 grey levels on average. Prepare them yourself \
(npz with floating x), and name the network by a function of your own (package.module:factory)
    """
    pixels = telling_picture(preprocess)
    made = prepared(preprocess, pixels)
    try:
        expected = theirs(Image.fromarray(pixels))
    except Exception as error:
        raise refusal(spec, f"its own transform failed: {one_line(error)}") from error
    if expected.shape != made.shape:
        raise refusal(
            spec, f"it makes {tuple(expected.shape)} of a picture, here it is {tuple(made.shape)}"
        )
    std = made.new_tensor(preprocess.std)[:, None, None]
    gap = float(((expected.float() - made) * std).abs().mean())
    if not gap <= TOLERANCE:
        raise refusal(
            spec,
            f"a test picture comes out otherwise, by {255 * gap:.0f} of 255 grey levels on average",
        )
    return preprocess
