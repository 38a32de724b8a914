"""Inputs on any file system that pyarrow knows, named by a URI (`s3://`, `gs://`, `hdfs://`).

A folder there is read by the same rules as one on this machine, and gives the same rows in the same
order. What stands behind a question mark (`?region=…&endpoint_override=…`) goes with every file.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from tulip_ood.data.decoding import NOT_FETCHED
from tulip_ood.data.folder import is_image, no_images
from tulip_ood.data.source import FileStamp, ImageFiles
from tulip_ood.errors import DataError, in_one_line

__all__ = [
    "RemoteFiles",
    "bare",
    "find",
    "folder_of",
    "is_remote",
    "join",
    "open_remote_folder",
    "opened",
    "read_remote",
    "remote_files",
    "remote_folders",
    "stamp_of",
]

_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MOST_BYTES = 1 << 30  # of one image: what is larger is not read into memory


def is_remote(name: str) -> bool:
    """Whether a name is a URI.

    Example:
        >>> is_remote("s3://bucket/cats"), is_remote("data/cats")
        (True, False)
    """
    return _URI.match(name) is not None


def bare(name: str) -> str:
    """A name without what stands behind a question mark in a URI; a path stays as it is.

    Example:
        >>> bare("s3://bucket/a.png?region=eu-west-1"), bare("why?.png")
        ('s3://bucket/a.png', 'why?.png')
    """
    return name.partition("?")[0] if is_remote(name) else name


def find(name: str) -> tuple[Any, str]:
    """The file system and the path in it. One connection serves a whole bucket.

    Example:
        >>> find("file:///data/my cats/tom.jpg")[1]
        '/data/my cats/tom.jpg'
    """
    scheme, _, rest = name.partition("://")
    place, question, options = rest.partition("?")
    host, _, path = place.partition("/")
    system, root = _connect(f"{scheme}://{host}/{question}{options}")
    return system, posixpath.join(root, path).rstrip("/") or "/"


@lru_cache(maxsize=64)
def _connect(root: str) -> tuple[Any, str]:
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        found: tuple[Any, str] = FileSystem.from_uri(root)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{root} cannot be opened by pyarrow: {in_one_line(error)}") from error
    return found


def join(folder: str, path: str) -> str:
    """Where a path leads that was written in a folder; as `os.path.join`, for URIs too.

    Example:
        >>> join("s3://bucket/cats/?region=eu-west-1", "tom/1.jpg"), join("cats", "1.jpg")
        ('s3://bucket/cats/tom/1.jpg?region=eu-west-1', 'cats/1.jpg')
    """
    if is_remote(path) or not is_remote(folder):
        return path if is_remote(path) else os.path.join(folder, path)
    place, question, options = folder.partition("?")
    return f"{place.rstrip('/')}/{path}{question}{options}"


def folder_of(name: str) -> str:
    """The folder that a file lies in; as `os.path.dirname`, for URIs too.

    Example:
        >>> folder_of("s3://bucket/cats/list.txt?region=eu-west-1"), folder_of("cats/list.txt")
        ('s3://bucket/cats?region=eu-west-1', 'cats')
    """
    if not is_remote(name):
        return os.path.dirname(name)
    place, question, options = name.partition("?")
    return f"{place.rpartition('/')[0]}{question}{options}"


@contextmanager
def opened(name: str) -> Iterator[Any]:
    """A file, on this machine or elsewhere, opened for reading bytes.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_bytes(b"all of it")
        ...     with opened(f"file://{folder}/a.txt") as file:
        ...         file.read(3)
        b'all'
    """
    if not is_remote(name):
        with open(name, "rb") as file:
            yield file
        return
    system, path = find(name)
    with system.open_input_file(path) as file:
        yield file


def stamp_of(name: str) -> FileStamp | None:
    """A file as it is now; with a size of −1 if it is not there, None if it is a folder.

    Example:
        >>> stamp_of("file:///no/such/file").size, stamp_of("file:///")
        (-1, None)
    """
    from pyarrow.fs import FileType

    system, path = find(name)
    try:
        found = system.get_file_info(path)
    except OSError as error:
        raise DataError(f"{name} cannot be reached: {in_one_line(error)}") from error
    if found.type == FileType.Directory:
        return None
    if found.type != FileType.File:
        return FileStamp(name, -1, 0)
    return FileStamp(name, found.size, found.mtime_ns or 0)


def read_remote(name: str) -> bytes:
    """All bytes of a file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_bytes(b"all of it")
        ...     read_remote(f"file://{folder}/a.txt")
        b'all of it'
    """
    try:
        with opened(name) as file:
            if file.size() > _MOST_BYTES:
                raise DataError(f"the file has {file.size():,} bytes, more than {_MOST_BYTES:,}")
            content: bytes = file.read()
    except (DataError, FileNotFoundError):
        raise
    except OSError as error:  # no network, no permission: nothing that the file can help
        raise DataError(f"{NOT_FETCHED}: {in_one_line(error)}") from error
    return content


class RemoteFiles(ImageFiles):
    """Image files of one folder, with sizes and times from its listing; see `open_remote_folder`.

    Example:
        >>> stamp = FileStamp("s3://bucket/a.png", 9, 0)
        >>> next(RemoteFiles("s3://bucket", [stamp], [None]).files()).size
        9
    """

    def __init__(
        self,
        name: str,
        stamps: Sequence[FileStamp],
        labels: Sequence[int | None],
        classes: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, [stamp.path for stamp in stamps], labels, classes)
        self._stamps = stamps

    def files(self) -> Iterator[FileStamp]:
        """Every file."""
        return iter(self._stamps)

    def folders(self) -> Iterator[str]:
        """None on this machine."""
        return iter(())


def remote_folders(folder: str) -> tuple[str, ...]:
    """The names of the class folders in a folder, sorted.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("dog", "cat", ".cache"):
        ...         pathlib.Path(folder, name).mkdir()
        ...     remote_folders(f"file://{folder}")
        ('cat', 'dog')
    """
    return tuple(sorted(parts[0] for parts, _ in _listing(folder, "Directory", deep=False)))


def remote_files(folder: str) -> list[str]:
    """The URIs of the visible files in a folder, not below it, sorted.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pathlib.Path(folder, "a.parquet").touch()
        ...     remote_files(f"file://{folder}") == [f"file://{folder}/a.parquet"]
        True
    """
    return sorted(stamp.path for _, stamp in _listing(folder, "File", deep=False))


def open_remote_folder(folder: str, classes: Sequence[str] | None = None) -> RemoteFiles:
    """The images below a folder, in the order and with the labels of `open_folder`.

    Args:
        folder: Its URI.
        classes: The names of the classes in the network's order; by default the sorted names of
            the class folders.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("dog/1.png", "cat/1.png", "cat/notes.txt"):
        ...         path = pathlib.Path(folder, name)
        ...         path.parent.mkdir(exist_ok=True)
        ...         path.touch()
        ...     source = open_remote_folder(f"file://{folder}")
        >>> source.classes, list(source.labels())
        (('cat', 'dog'), [0, 1])
    """
    inside = remote_folders(folder)
    names = inside if classes is None else tuple(classes)
    number = {name: i for i, name in enumerate(names)}
    everything = list(_listing(folder, "File", deep=True))
    found = [(parts, stamp) for parts, stamp in everything if is_image(parts[-1])]
    if not found:
        raise no_images(folder, [parts[-1] for parts, _ in everything])
    # On every level files stand before folders, both sorted.
    found.sort(key=lambda one: [*((1, part) for part in one[0][:-1]), (0, one[0][-1])])
    labels = [number.get(parts[0]) if len(parts) > 1 else None for parts, _ in found]
    return RemoteFiles(folder, [stamp for _, stamp in found], labels, names if inside else None)


def _listing(folder: str, kind: str, *, deep: bool) -> Iterator[tuple[list[str], FileStamp]]:
    """(the parts of its path below the folder, itself) for all of a kind that is visible there."""
    from pyarrow.fs import FileSelector, FileType

    system, path = find(folder)
    try:
        entries = system.get_file_info(FileSelector(path, recursive=deep))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read: {in_one_line(error)}") from error
    for entry in entries:
        parts = posixpath.relpath(entry.path, path).split("/")
        if entry.type == FileType[kind] and not any(part.startswith(".") for part in parts):
            where = join(folder, "/".join(parts))
            yield parts, FileStamp(where, entry.size or 0, entry.mtime_ns or 0)
