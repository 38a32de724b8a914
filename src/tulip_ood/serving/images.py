"""From a request's body to images: one as it is, a form with files, or JSON with base64."""

import base64
import binascii
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from tulip_ood.data.decoding import FORMATS, why
from tulip_ood.serving.limits import Limits
from tulip_ood.serving.multipart import parse_multipart
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.wording import counted, from_json

__all__ = ["ACCEPTED", "Upload", "check_header", "read_uploads", "unreadable"]

ACCEPTED = ("image/*", "application/octet-stream", "multipart/form-data", "application/json")
_VALUES = 1000  # of JSON for an image, whose name may hold commas, too
_NAME = 200  # characters of a file's name that are given back


@dataclass(frozen=True)
class Upload:
    """An image as it came.

    Attributes:
        name: What the client calls it, or None.
        content: The bytes of the file.

    Example:
        >>> Upload("a.png", b"BYTES").name
        'a.png'
    """

    name: str | None
    content: bytes


def read_uploads(body: bytes, content_type: str, limits: Limits) -> list[Upload]:
    """The images in a body.

    Args:
        body: All of it.
        content_type: The request's Content-Type, with its parameters.
        limits: How many there may be.

    Example:
        >>> read_uploads(b'{"images": ["QUJD"]}', "application/json", Limits())
        [Upload(name=None, content=b'ABC')]
        >>> read_uploads(b"", "text/html", Limits())
        Traceback (most recent call last):
        ...
        tulip_ood.serving.refusal.RefusalError: Content-Type 'text/html' is not known here: send \
image/*, application/octet-stream, multipart/form-data, application/json
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        parts = parse_multipart(body, content_type, most=limits.images)
        found = [
            Upload(_name(part.filename or part.name), part.content)
            for part in parts
            if part.filename is not None or part.content_type.startswith("image/")
        ]
    elif kind == "application/json":
        found = _from_json(body, limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        found = [Upload(None, body)]
    else:
        raise RefusalError(
            415,
            "unknown-content-type",
            f"Content-Type {kind!r} is not known here: send {', '.join(ACCEPTED)}",
            headers=[("accept", ", ".join(ACCEPTED))],
        )
    if not found:
        raise RefusalError(
            422, "no-image", "there is no image in this request: send at least one file"
        )
    return found


def _from_json(body: bytes, limits: Limits) -> list[Upload]:
    # Three bytes of JSON can become a hundred in memory: values are counted before they are made.
    if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES * limits.images:
        raise RefusalError(
            413,
            "too-many-images",
            f"the body holds far more than {counted(limits.images, 'image')} can need: send more",
        )
    try:
        values = from_json(body)
    except ValueError as error:
        raise RefusalError(400, "bad-json", f"the body is no JSON: {error}") from error
    images = values.get("images") if isinstance(values, dict) else None
    if not isinstance(images, list):
        raise RefusalError(
            422, "bad-json", 'expected {"images": [{"data": "<base64>", "name": "a.jpg"}, …]}'
        )
    if len(images) > limits.images:
        raise RefusalError(
            413,
            "too-many-images",
            f"{len(images)} images in one request, the limit is {limits.images}: send several",
        )
    return [_from_item(item, place) for place, item in enumerate(images)]


def _from_item(item: Any, place: int) -> Upload:
    data, name = (item.get("data"), item.get("name")) if isinstance(item, dict) else (item, None)
    if not isinstance(data, str) or not (name is None or isinstance(name, str)):
        raise RefusalError(
            422,
            "bad-json",
            f'images[{place}] must be a string of base64, or {{"data": "<base64>", "name": "…"}}',
        )
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return Upload(_name(name), base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:
        raise RefusalError(
            422, "bad-base64", f"images[{place}] is no base64 that can be read: {error}"
        ) from error


def _name(text: str | None) -> str | None:
    """A name that can be sent back: lone surrogates are legal in JSON, but in no encoding."""
    return None if text is None else text[:_NAME].encode("utf-8", "replace").decode()


def check_header(content: bytes, limit: int) -> None:
    """Refuse an image with too many pixels by its header, before anything is decompressed.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (20, 10)).save(file, "PNG")
        >>> check_header(file.getvalue(), 100)
        Traceback (most recent call last):
        ...
        tulip_ood.serving.refusal.RefusalError: 20 × 10 are 200 pixels, more than the limit of 100
    """
    if not content:
        raise unreadable("the file is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RefusalError(413, "too-many-pixels", why(error)) from error
    except Exception as error:  # whatever a stranger's file makes of our libraries
        raise unreadable(why(error)) from error
    if width * height > limit:
        raise RefusalError(
            413,
            "too-many-pixels",
            f"{width} × {height} are {width * height:,} pixels, more than the limit of {limit:,}",
        )


def unreadable(reason: str) -> RefusalError:
    """An image that cannot be shown to the network.

    Example:
        >>> unreadable("the file is empty (0 bytes)").status
        422
    """
    return RefusalError(422, "unreadable-image", reason)
