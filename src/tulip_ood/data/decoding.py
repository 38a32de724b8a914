"""From a file, its bytes or an array to an RGB image; or a reason why not.

What a network is shown must not depend on how a picture happens to be stored: EXIF rotation is
applied; CMYK, palettes and 16 bits become plain 8-bit RGB; of an animation the first frame is
taken; transparency is dropped (as torchvision's own loader does).
"""

import errno
import io
import os
import re
import stat

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from tulip_ood.errors import DataError

__all__ = ["NOT_FETCHED", "Raw", "check_pixels", "decode", "why"]

Raw = str | bytes | NDArray[np.generic] | None  # a path or URI, bytes, pixels, or nothing

# Named, so that nothing exotic is tried on a stranger's file: EPS would start Ghostscript.
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO", "ICO")
Image.init()
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
NOT_FETCHED = "the file could not be fetched"
# What no file can help: a disk, a share or this process is at its end.
_OUTAGES = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "ENOTCONN", "ENODEV", "ENXIO", "ETIMEDOUT", "EHOSTDOWN", "EMFILE")
    if hasattr(errno, name)
)
_PIXEL_LIMIT = 89_478_485  # Pillow's own, for someone who has switched Pillow's off


def check_pixels(width: int, height: int) -> None:
    """Refuse an image that would fill the memory; the limit is `PIL.Image.MAX_IMAGE_PIXELS`.

    Example:
        >>> check_pixels(30_000, 30_000)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: 30000 × 30000 are 900,000,000 pixels, more than the limit of \
89,478,485
    """
    limit = _limit()
    if width * height > limit:
        raise DataError(
            f"{width} × {height} are {width * height:,} pixels, more than the limit of {limit:,}"
        )


def _limit() -> int:
    return Image.MAX_IMAGE_PIXELS or _PIXEL_LIMIT


def decode(raw: Raw, *, mode: str = "RGB") -> Image.Image:
    """The image, upright, in mode "RGB" or "L".

    Args:
        raw: A path or a URI, the bytes of a file, or uint8 pixels [H, W] or [H, W, C].
        mode: What the network takes.

    Raises:
        Exception: Whatever went wrong; `why` puts it into words.

    Example:
        >>> import numpy as np
        >>> decode(np.zeros((2, 3), dtype=np.uint8)).size
        (3, 2)
    """
    if raw is None:
        raise DataError("there is no image in this row")
    if isinstance(raw, np.ndarray):
        pixels = raw[..., 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw
        return _plain(Image.fromarray(pixels), mode)
    if isinstance(raw, str) and "://" in raw:
        from tulip_ood.data.remote import is_remote, read_remote

        raw = read_remote(raw) if is_remote(raw) else raw
    if isinstance(raw, str):
        found = os.stat(raw)
        if not stat.S_ISREG(found.st_mode):  # a pipe would make us wait for ever
            raise DataError("this is not a regular file")
        empty = found.st_size == 0
    else:
        empty = len(raw) == 0
    if empty:
        raise DataError("the file is empty (0 bytes)")
    with Image.open(raw if isinstance(raw, str) else io.BytesIO(raw), formats=FORMATS) as image:
        check_pixels(*image.size)
        image.load()
        return _plain(_upright(image), mode, image.format)


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block must not cost a good picture
        return image


def _plain(image: Image.Image, mode: str, stored_as: str | None = None) -> Image.Image:
    # Older Pillows call 16-bit greyscale PNGs "I".
    if image.mode.startswith("I;16") or (image.mode == "I" and stored_as == "PNG"):
        # Pillow's own conversion clips at 255 and turns almost everything white.
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray((wide >> 8).clip(0, 255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"pixels of mode {image.mode!r} (32 bits) have no known range: convert to 8 or 16 bits"
        )
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def why(error: BaseException) -> str:
    """One line that says why an image could not be read, the same in every run.

    Example:
        >>> why(FileNotFoundError(2, "No such file or directory"))
        'there is no such file'
    """
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "the file may not be read (permission denied)"
    if isinstance(error, UnidentifiedImageError):
        return "this is no image in a known format, or it is cut short"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        count = re.search(r"\((\d+) pixels\)", str(error))
        seen = f"{int(count[1]):,}" if count else "too many"
        return f"the image has {seen} pixels, more than the limit of {_limit():,}"
    if isinstance(error, OSError) and error.errno in _OUTAGES:
        return f"{NOT_FETCHED}: {error.strerror}"
    # Addresses of objects differ from run to run.
    text = re.sub(r"\s*(at )?0x[0-9a-fA-F]+", "", " ".join(str(error).split()))[:200]
    if isinstance(error, OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
