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

__all__ = ["PATH", "PIXELS", "REASON", "pixels_or_why", "read_answer", "request", "send", "serve"]

PATH, BYTES, PIXELS, REASON = b"p", b"b", b"a", b"w"
_REQUEST = struct.Struct("<cQ")  # kind, length
_NAMES = ("utf-8", "surrogatepass")  # any text, whatever the system calls its files
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


def request(raw: str | bytes) -> bytes:
    """What asks for one image.

    Example:
        >>> request("a.png")[:1] == PATH
        True
    """
    # A name that no file can have is refused there, with the same words as here.
    named = isinstance(raw, str)
    body = raw.encode(*_NAMES) if isinstance(raw, str) else raw
    return _REQUEST.pack(PATH if named else BYTES, len(body)) + body


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


def send(stream: BinaryIO, message: bytes) -> None:
    """All of it, in one piece where the pipe has room: the other side wakes up once.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> send(stream, request(b"pixels"))
        >>> stream.getvalue() == request(b"pixels")
        True
    """
    left = memoryview(message)
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
        >>> send(asked, request(json.dumps({"preprocess": how, "most_pixels": None})))
        >>> send(asked, request("/no/such/file.png"))
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
            found = pixels_or_why(preprocess, asked.decode(*_NAMES) if kind == PATH else asked)
            if isinstance(found, str):
                text = found.encode("utf-8", "replace")
                send(answers, _ANSWER.pack(REASON, len(text), 0, 0) + text)
            else:
                body = np.ascontiguousarray(found).data.cast("B")
                send(answers, b"".join((_ANSWER.pack(PIXELS, *found.shape), body)))
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
