"""A process that decodes images for another one: `python -m tulip_ood.data.worker`, over pipes.

A request is a path or the bytes of a file; the answer its pixels, or the reason why there are none.
Nothing is pickled, PyTorch is not imported, and the process ends when its input does, also where
the one that started it was killed.
"""

import json
import os
import struct
import sys
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.data.decoding import Raw, why
from tulip_ood.data.preprocess import Preprocess

__all__ = ["PATH", "PIXELS", "REASON", "pixels_or_why", "read_answer", "serve", "write_request"]

PATH, BYTES, PIXELS, REASON = b"p", b"b", b"a", b"w"
_REQUEST = struct.Struct("<cQ")  # kind, length
_ANSWER = struct.Struct("<cQQQ")  # kind, shape (a reason has its length and zeros)


def pixels_or_why(preprocess: Preprocess, raw: Raw) -> NDArray[np.uint8] | str:
    """The pixels of an image, or the reason why there are none.

    Example:
        >>> pixels_or_why(Preprocess(None, None, (0.5,), (0.5,)), None)
        'there is no image in this row'
    """
    try:
        return preprocess.pixels(raw)
    except Exception as error:  # whatever a stranger's file makes of our libraries
        return why(error)


def write_request(stream: BinaryIO, raw: str | bytes) -> None:
    """Ask for one image.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> write_request(stream, "a.png")
        >>> stream.getvalue()[:1] == PATH
        True
    """
    named = isinstance(raw, str)
    body = os.fsencode(raw) if isinstance(raw, str) else raw
    _send(stream, _REQUEST.pack(PATH if named else BYTES, len(body)) + body)


def read_answer(stream: BinaryIO) -> NDArray[np.uint8] | str:
    """What came back; raises EOFError where the process is gone.

    Example:
        >>> import io
        >>> read_answer(io.BytesIO(_ANSWER.pack(REASON, 2, 0, 0) + b"no"))
        'no'
    """
    kind, *shape = _ANSWER.unpack(_exactly(stream, _ANSWER.size))
    if kind == REASON:
        return bytes(_exactly(stream, shape[0])).decode("utf-8", "replace")
    pixels = np.empty(shape, dtype=np.uint8)
    _fill(stream, pixels.data.cast("B"))
    return pixels


def _send(stream: BinaryIO, *parts: bytes | memoryview) -> None:
    for part in parts:
        left = memoryview(part)
        while len(left):  # a signal may cut a write short
            left = left[stream.write(left) :]
    stream.flush()


def _exactly(stream: BinaryIO, n: int) -> bytearray:
    whole = bytearray(n)
    _fill(stream, memoryview(whole))
    return whole


def _fill(stream: BinaryIO, place: memoryview) -> None:
    """Read straight into memory that is there already: pictures are large."""
    at = 0
    while at < len(place):
        got = stream.readinto(place[at:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        at += got


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are none; the first says how images are prepared.

    Example:
        >>> import io
        >>> asked, said = io.BytesIO(), io.BytesIO()
        >>> how = Preprocess(None, None, (0.5,), (0.5,)).to_json()
        >>> write_request(asked, json.dumps({"preprocess": how, "most_pixels": None}))
        >>> write_request(asked, "/no/such/file.png")
        >>> _ = asked.seek(0), serve(asked, said), said.seek(0)
        >>> read_answer(said)
        'there is no such file'
    """
    try:
        _, first = _read_request(requests)
        told = json.loads(first)
        Image.MAX_IMAGE_PIXELS = told["most_pixels"]
        preprocess = Preprocess.from_json(told["preprocess"])
        while True:
            kind, asked = _read_request(requests)
            found = pixels_or_why(preprocess, os.fsdecode(asked) if kind == PATH else asked)
            if isinstance(found, str):
                text = found.encode("utf-8", "replace")
                _send(answers, _ANSWER.pack(REASON, len(text), 0, 0), text)
            else:
                body = np.ascontiguousarray(found).data.cast("B")
                _send(answers, _ANSWER.pack(PIXELS, *found.shape), body)
    except (EOFError, BrokenPipeError):
        return


def _read_request(stream: BinaryIO) -> tuple[bytes, bytes]:
    kind, length = _REQUEST.unpack(_exactly(stream, _REQUEST.size))
    return kind, bytes(_exactly(stream, length))


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    serve(sys.stdin.buffer, answers)
    os._exit(0)  # a pipe that is gone must not make noise while the interpreter ends


if __name__ == "__main__":
    _main()
