"""An image list: a text file with a line `path label` (or `path`) for every image."""

import io
from collections.abc import Iterator
from typing import NamedTuple

from tulip_ood.data.foreign import check_regular
from tulip_ood.data.remote import folder_of, join, opened
from tulip_ood.data.source import NO_LABEL, FileStamp, ImageFiles
from tulip_ood.errors import DataError

__all__ = ["ImageList", "Line", "open_list", "parse_line"]

_MOST_DIGITS = 18  # of a whole number that tensors hold


class Line(NamedTuple):
    """One line of an image list.

    Attributes:
        path: As written.
        label: The class number, or None.

    Example:
        >>> Line("a.png", None).path
        'a.png'
    """

    path: str
    label: int | None


def parse_line(line: str) -> Line | None:
    """The path and label of a line; None for a blank one.

    What follows the last blank is the label if it is a whole number; −1 means "none". So a path
    may contain blanks.

    Example:
        >>> parse_line("my photos/tom 1.jpg 3"), parse_line("tom.jpg -1"), parse_line("tom.jpg")
        (Line(path='my photos/tom 1.jpg', label=3), Line(path='tom.jpg', label=None), \
Line(path='tom.jpg', label=None))
    """
    text = line.strip()
    if not text:
        return None
    head, *tail = text.rsplit(maxsplit=1)
    if not tail:
        return Line(text, None)
    digits = tail[0].removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return Line(text, None)
    # Longer than any class number: Python would even refuse to read it.
    label = NO_LABEL - 1 if len(digits) > _MOST_DIGITS else int(tail[0])
    if label < NO_LABEL:
        raise DataError(f"the label {tail[0][:30]} is neither a class number nor −1 (none)")
    return Line(head, None if label == NO_LABEL else label)


class ImageList(ImageFiles):
    """The images that a list names; made by `open_list`.

    Example:
        >>> len(ImageList("list.txt", ["a.png"], [0]))
        1
    """

    def files(self) -> Iterator[FileStamp]:
        """The list itself (it holds the labels), then every image."""
        yield FileStamp.of(self.name)
        yield from super().files()


def open_list(file: str, root: str | None = None) -> ImageList:
    r"""The images that a list names, in its order; a missing one becomes an unreadable row.

    Args:
        file: The list.
        root: What its paths are relative to; by default the folder of the list.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "list.txt")
        ...     _ = path.write_text("cat/1.png 0\ndog/1.png 1\n")
        ...     source = open_list(str(path))
        >>> list(source.labels())
        [0, 1]
    """
    check_regular(file)
    base = folder_of(file) if root is None else root
    paths: list[str] = []
    labels: list[int | None] = []
    try:
        # File names may be in any encoding; surrogates carry them through unchanged.
        with opened(file) as content:
            lines = io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape")
            for number, text in enumerate(lines, start=1):
                try:
                    line = parse_line(text)
                except DataError as error:
                    raise DataError(f"{file}, line {number}: {error}") from None
                if line is None:
                    continue
                if "\0" in line.path:
                    raise DataError(f"{file}, line {number}: this is not a text file")
                paths.append(join(base, line.path))
                labels.append(line.label)
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the list {file} cannot be read: {error.strerror}") from error
    if not paths:
        raise DataError(f"the list {file} names no images; expected lines like 'cats/tom.jpg 3'")
    return ImageList(file, paths, labels)
