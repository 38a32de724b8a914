"""A zoo of image files: what real folders hold besides good JPEGs."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def picture(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """A smooth picture with a bright left half, so that turning it shows."""
    y, x = np.mgrid[:height, :width]
    shade = (x < width / 2) * 160 + 20 + (y * 40 / height) + seed % 20
    return Image.fromarray(np.stack([shade, shade / 2, 200 - shade], axis=-1).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **how: object) -> bytes:
    held = io.BytesIO()
    image.save(held, kind, **how)
    return held.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A tiny PNG whose header claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels)


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    """Write files by their relative names."""

    def make(files: dict[str, bytes]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return tmp_path

    return make


@pytest.fixture(scope="session")
def good() -> dict[str, bytes]:
    """Files that can be read, however odd."""
    base = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to view
    palette = base.quantize(8)
    palette.info["transparency"] = bytes(range(8))
    frames = [Image.new("RGB", (48, 32), colour) for colour in ("red", "green", "blue")]
    deep = Image.fromarray(np.full((32, 48), 0x8123, dtype=np.uint16))
    return {
        "plain.jpg": encoded(base, "JPEG", quality=95),
        "cmyk.jpg": encoded(base.convert("CMYK"), "JPEG", quality=95),
        "deep.png": encoded(deep, "PNG"),
        "animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "turned.jpg": encoded(base, "JPEG", quality=95, exif=exif),
        "palette.png": encoded(palette, "PNG"),
        "alpha.png": encoded(base.convert("RGBA"), "PNG"),
        "grey.png": encoded(base.convert("L"), "PNG"),
        "bits.png": encoded(base.convert("1"), "PNG"),
        "one.png": encoded(Image.new("RGB", (1, 1), (10, 200, 30)), "PNG"),
        "web.webp": encoded(base, "WEBP", lossless=True),
        "wide.tiff": encoded(base, "TIFF"),
    }


@pytest.fixture(scope="session")
def bad() -> dict[str, tuple[bytes, str]]:
    """Files that cannot be read, and a word that the reason must contain."""
    whole = encoded(picture(200, 200), "JPEG", quality=95)
    float_pixels = Image.fromarray(np.zeros((4, 4), dtype=np.float32))
    return {
        "truncated.jpg": (whole[: len(whole) // 2], "truncated"),
        "stub.jpg": (whole[:10], "Truncated"),
        "empty.jpg": (b"", "0 bytes"),
        "text.jpg": (b"this is not a picture at all\n", "no image in a known format"),
        "bomb.png": (png_claiming(30_000, 30_000), "limit of 89,478,485"),
        "small-bomb.png": (png_claiming(10_000, 10_000), "limit of 89,478,485"),
        "script.png": (encoded(picture(), "EPS"), "no image in a known format"),
        "float.tiff": (encoded(float_pixels, "TIFF"), "no known range"),
    }
