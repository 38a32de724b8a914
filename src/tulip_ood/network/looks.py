"""What a file is that is not what was asked for, told from its first bytes."""

import os

__all__ = ["absent", "looks_like"]

_BEGINNINGS = {
    b"\x89PNG": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"GIF8": "an image (GIF)",
    b"PAR1": "a parquet table",
    b"PK\x03\x04": "a zip archive (torch.save and torch.export write such, and so does numpy)",
    b"\x1f\x8b": "packed by gzip",
    b"\x93NUMPY": "a NumPy array",
    b"%PDF": "a PDF",
}
_PICKLES = tuple(bytes([0x80, version]) for version in range(2, 6))
_READ = 512


def looks_like(path: str | os.PathLike[str]) -> str | None:
    r"""What a file seems to be, to end the sentence "it is …"; None if that cannot be told.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/x.safetensors", "wb") as file:
        ...         _ = file.write(b"\x89PNG and more")
        ...     looks_like(f"{folder}/x.safetensors")
        'an image (PNG)'
    """
    try:
        with open(path, "rb") as file:
            start = file.read(_READ)
    except OSError:
        return None
    if not start:
        return "empty"
    for beginning, what in _BEGINNINGS.items():
        if start.startswith(beginning):
            return what
    if start.startswith(_PICKLES):
        return "a pickle, which could run code and is not opened"
    if _is_onnx(start):
        return "an ONNX file, which onnxruntime runs"
    return "text" if _is_text(start) else None


def absent(path: str | os.PathLike[str], what: str) -> str:
    """That there is no such file, in words; a folder is none.

    Args:
        path: Where nothing was found.
        what: What was looked for.

    Example:
        >>> absent("x.safetensors", "detector file"), absent("", "file")
        ('there is no detector file x.safetensors', "there is no file ''")
        >>> absent("/", "file")
        'there is no file /: that is a folder'
    """
    named = os.fspath(path) or "''"
    return f"there is no {what} {named}{': that is a folder' if os.path.isdir(path) else ''}"


def _is_onnx(start: bytes) -> bool:
    """A protobuf whose first field is a small version, and whose second is one of a model's."""
    known = {number << 3 | 2 for number in (2, 3, 4, 6, 7, 8, 14)} | {5 << 3}
    return len(start) > 2 and start[0] == 1 << 3 and 0 < start[1] < 64 and start[2] in known


def _is_text(start: bytes) -> bool:
    text = start.decode("utf-8", errors="ignore")
    whole = len(text.encode()) > len(start) - 4  # a letter may be cut in two at the end
    return whole and all(letter.isprintable() or letter.isspace() for letter in text)
