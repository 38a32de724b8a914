"""How an image becomes what the network was trained on: resize, crop, scale, normalise.

Pillow and torch alone, with torchvision's arithmetic (shorter side, centre crop), so that a network
from there sees the same pixels here; where other libraries do otherwise, a field says so.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.data.decoding import Raw, check_pixels, decode
from tulip_ood.errors import DataError, InputError

if TYPE_CHECKING:  # a process that only decodes need not load it
    import torch
    from torch import Tensor

__all__ = ["CROP_ROUNDINGS", "INTERPOLATIONS", "Preprocess"]

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}
# What is cut off before a centre crop, out of what is cut off in all.
CROP_ROUNDINGS: dict[str, Callable[[int], int]] = {
    "even": lambda margin: round(margin / 2),  # torchvision and timm: 1.5 and 2.5 become 2
    "down": lambda margin: margin // 2,  # transformers
}


@dataclass(frozen=True)
class Preprocess:
    """From an image to the network's input; goes into a detector file's header.

    Attributes:
        resize: The shorter side after resizing (both, if `squash`); None to leave the size alone.
        crop: The side of the square cut out of the centre; None for the whole image.
        mean: Subtracted after scaling to [0, 1]; three numbers for RGB, one for a grey network.
        std: What is divided by, as many numbers.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos" or "box".
        squash: Whether both sides are resized to `resize`, whatever the image's shape. Without
            `resize` nothing is squashed either.
        crop_rounding: How half of an odd margin around the crop is rounded: "even" (to the nearest
            even number, as torchvision and timm do) or "down" (as transformers does).

    Example:
        >>> import numpy as np
        >>> preprocess = Preprocess(32, 32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> pixels = preprocess.pixels(np.zeros((40, 60, 3), dtype=np.uint8))
        >>> x = preprocess.normalise(pixels[None])
        >>> x.shape, float(x.min())
        (torch.Size([1, 3, 32, 32]), -1.0)
    """

    resize: int | None
    crop: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    squash: bool = False
    crop_rounding: str = "even"

    def __post_init__(self) -> None:
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is not None and not (isinstance(side, int) and side >= 1):
                raise InputError(f"{name} must be a whole number of at least 1, got {side!r}")
        if self.resize is not None and self.crop is not None and self.crop > self.resize:
            raise InputError(
                f"a crop of {self.crop} does not fit into images whose shorter side is "
                f"{self.resize}: make resize at least {self.crop}"
            )
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise InputError(
                f"mean and std must have three numbers each (RGB) or one each (greyscale), got "
                f"{len(self.mean)} and {len(self.std)}"
            )
        if not all(math.isfinite(m) for m in self.mean):
            raise InputError(f"mean must be finite, got {self.mean}")
        if not all(math.isfinite(s) and s > 0 for s in self.std):
            raise InputError(f"std must be positive, got {self.std}")
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}; got "
                f"{self.interpolation!r}"
            )
        self._check_shape()

    def _check_shape(self) -> None:
        if not isinstance(self.squash, bool):
            raise InputError(f"squash must be true or false, got {self.squash!r}")
        if self.crop_rounding not in CROP_ROUNDINGS:
            raise InputError(
                f"crop_rounding must be one of {', '.join(CROP_ROUNDINGS)}; got "
                f"{self.crop_rounding!r}"
            )

    # ------------------------------------------------------------------- images

    def pixels(self, raw: Raw) -> NDArray[np.uint8]:
        """Decode, resize and crop: uint8 [H, W, C]."""
        image = decode(raw, mode="RGB" if len(self.mean) == 3 else "L")
        if self.resize is not None:
            image = self._resized(image, self.resize)
        if self.crop is not None:
            image = self._cropped(image, self.crop)
        pixels = np.array(image, dtype=np.uint8)
        return pixels if pixels.ndim == 3 else pixels[..., None]

    def _resized(self, image: Image.Image, side: int) -> Image.Image:
        width, height = image.size
        method = INTERPOLATIONS[self.interpolation]
        if self.squash:
            check_pixels(side, side)
            return image.resize((side, side), method)
        shorter, longer = min(width, height), max(width, height)
        if shorter == side:
            return image
        long_side = int(side * longer / shorter)
        check_pixels(side, long_side)  # a thin strip can grow into a bomb
        size = (side, long_side) if width <= height else (long_side, side)
        return image.resize(size, method)

    def _cropped(self, image: Image.Image, side: int) -> Image.Image:
        width, height = image.size
        if min(width, height) < side:
            raise DataError(
                f"the image is {width} × {height}, smaller than the crop of {side}: set resize"
            )
        half = CROP_ROUNDINGS[self.crop_rounding]
        left, top = half(width - side), half(height - side)
        return image.crop((left, top, left + side, top + side))

    def normalise(
        self, pixels: "NDArray[np.uint8] | Tensor", device: "torch.device | None" = None
    ) -> "Tensor":
        """uint8 [N, H, W, C] → float32 [N, C, H, W], scaled to [0, 1], less mean, over std.

        Args:
            pixels: Where they lie is where the arithmetic is done, unless `device` says otherwise.
            device: Pixels go there first, which are four times smaller. The bits are the same.
        """
        import torch

        x = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else pixels
        if device is not None:
            x = x.to(device, non_blocking=True)
        # Tensors, not numbers: CUDA divides by a number in another way than a CPU.
        full, mean, std = (
            torch.tensor(v, dtype=torch.float32, device=x.device)
            for v in ((255.0,), self.mean, self.std)
        )
        wide = x.permute(0, 3, 1, 2).contiguous().to(torch.float32)  # ours: changed in place
        return wide.div_(full).sub_(mean[:, None, None]).div_(std[:, None, None])

    # -------------------------------------------------------------------- header

    def to_json(self) -> dict[str, Any]:
        """Ready for a JSON header.

        Fields that came later are left out where they say nothing new: files and fingerprints
        stay as they were.
        """
        values = asdict(self) | {"mean": list(self.mean), "std": list(self.std)}
        return {k: v for k, v in values.items() if k not in _LATER or v != _LATER[k]}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Preprocess":
        """What `to_json` gave, in this release or an older one.

        Example:
            >>> a = Preprocess(None, None, (0.5,), (0.5,))
            >>> Preprocess.from_json(a.to_json()) == a
            True
        """
        known = set(Preprocess.__dataclass_fields__)
        given = set(values) if isinstance(values, Mapping) else set()
        if not known - set(_LATER) <= given <= known:
            raise InputError(
                f"a preprocess has the fields {', '.join(sorted(known))}; got {values!r}"
            )
        try:
            numbers = {key: tuple(float(v) for v in values[key]) for key in ("mean", "std")}
            return Preprocess(**{**values, **numbers})
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{values!r} is no preprocess: {error}") from error

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides the pixels."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


# Fields that the first detector files do not have, and what these mean.
_LATER = {name: getattr(Preprocess, name) for name in ("squash", "crop_rounding")}
