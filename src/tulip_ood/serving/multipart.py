"""Forms with files in them (multipart/form-data), from bytes that are in memory already."""

import re
from dataclasses import dataclass

from tulip_ood.serving.refusal import RefusalError

__all__ = ["Part", "parse_multipart"]

_MOST_HEADERS = 8192  # bytes of one part's headers
_PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s]*)')


@dataclass(frozen=True)
class Part:
    """One field of a form.

    Attributes:
        name: The field's name.
        filename: The file's name; None for a field that is no file.
        content_type: What the client says it is, in lower case; "" if it says nothing.
        content: Its bytes.

    Example:
        >>> Part("image", "a.png", "image/png", b"BYTES").filename
        'a.png'
    """

    name: str
    filename: str | None
    content_type: str
    content: bytes


def parse_multipart(body: bytes, content_type: str, *, most: int) -> list[Part]:
    r"""The parts of a form.

    Args:
        body: The request's body.
        content_type: Its Content-Type, which names the boundary.
        most: Parts that are allowed.

    Example:
        >>> body = (
        ...     b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n'
        ...     b"Content-Type: image/png\r\n\r\nBYTES\r\n--x--\r\n"
        ... )
        >>> parse_multipart(body, "multipart/form-data; boundary=x", most=4)[0].content
        b'BYTES'
    """
    boundary = _parameters(content_type).get("boundary", "")
    if not 1 <= len(boundary) <= 70:
        raise _broken("its Content-Type names no boundary of 1 to 70 characters")
    # A boundary stands at the beginning of a line, so the first one gets a line break before it.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"), most + 2)
    if len(pieces) < 2:
        raise _broken("its boundary does not occur in the body")
    found: list[Part] = []
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return found
        if len(found) == most:
            raise RefusalError(
                413, "too-many-images", f"the form has more than {most} parts: send several forms"
            )
        found.append(_part(piece))
    raise _broken("its last boundary is missing: the form is cut short")


def _part(piece: bytes) -> Part:
    line_end = piece.find(b"\r\n")
    if line_end < 0 or piece[:line_end].strip(b" \t"):
        raise _broken("a boundary is followed by something else than a line break")
    head, blank, content = piece[line_end:].partition(b"\r\n\r\n")
    if not blank or len(head) > _MOST_HEADERS:
        raise _broken("a part has no end of its headers")
    headers = {}
    for line in head.split(b"\r\n"):
        name, _, value = line.decode("utf-8", "replace").partition(":")
        headers[name.strip().lower()] = value.strip()
    given = _parameters(headers.get("content-disposition", ""))
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return Part(given.get("name", ""), given.get("filename"), kind, content)


def _parameters(value: str) -> dict[str, str]:
    found = {}
    for name, text in _PARAMETER.findall(value):
        quoted = len(text) >= 2 and text[0] == text[-1] == '"'
        found[name.lower()] = re.sub(r"\\(.)", r"\1", text[1:-1]) if quoted else text
    return found


def _broken(what: str) -> RefusalError:
    return RefusalError(400, "bad-form", f"this is no multipart/form-data that can be read: {what}")
