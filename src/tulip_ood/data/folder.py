"""A folder of images: sorted class folders are classes 0…o−1, a flat folder has no labels."""

import os
from collections.abc import Iterator, Sequence

from tulip_ood.data.source import ImageFiles
from tulip_ood.errors import DataError

__all__ = [
    "IMAGE_SUFFIXES",
    "class_folders",
    "is_image",
    "no_images",
    "open_folder",
    "visible_files",
]

# fmt: off
IMAGE_SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".jp2", ".avif", ".mpo", ".ico",
))
# fmt: on


def is_image(name: str) -> bool:
    """Whether a file's name says that it is an image.

    Example:
        >>> is_image("Tom.JPG"), is_image("notes.txt")
        (True, False)
    """
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def class_folders(folder: str) -> tuple[str, ...]:
    """The names of the class folders in a folder, sorted; empty for a flat one.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("dog", "cat", ".cache"):
        ...         pathlib.Path(root, name).mkdir()
        ...     class_folders(root)
        ('cat', 'dog')
    """
    return tuple(_listing(folder)[1])


def visible_files(folder: str) -> list[str]:
    """The paths of the visible files in a folder, not below it, sorted.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pathlib.Path(folder, "a.parquet").touch()
        ...     visible_files(folder) == [f"{folder}/a.parquet"]
        True
    """
    return [os.path.join(folder, name) for name in _listing(folder)[0]]


def open_folder(folder: str, classes: Sequence[str] | None = None) -> ImageFiles:
    """The images below a folder, in sorted order.

    Every visible folder inside is a class, an empty one too (leaving it out would rename the
    others), with all images below it. Images beside class folders have no label. Links are
    followed, but no folder is entered twice within a class, so a loop ends.

    Args:
        folder: Where the images are.
        classes: The names of the classes in the network's order; class folders of other names
            have no label. By default the sorted names of the class folders.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("dog/1.png", "cat/1.png", "cat/notes.txt"):
        ...         path = pathlib.Path(root, name)
        ...         path.parent.mkdir(exist_ok=True)
        ...         path.touch()
        ...     source = open_folder(root)
        >>> source.classes, list(source.labels())
        (('cat', 'dog'), [0, 1])
    """
    files, inside = _listing(folder)
    paths = [os.path.join(folder, name) for name in files if is_image(name)]
    labels: list[int | None] = [None] * len(paths)
    names = tuple(inside if classes is None else classes)
    number = {name: i for i, name in enumerate(names)}
    for name in inside:
        found = list(_images(os.path.join(folder, name), {_identity(folder)}))
        paths += found
        labels += [number.get(name)] * len(found)
    if not paths:
        raise no_images(folder, files)
    return ImageFiles(folder, paths, labels, names if inside else None)


def no_images(folder: str, files: Sequence[str]) -> DataError:
    """What to raise where a folder holds other things than images.

    Example:
        >>> str(no_images("notes", ["a.doc"])).partition(";")[0]
        'the folder notes holds no images (there are .doc)'
    """
    seen = {os.path.splitext(name)[1] for name in files} - {""}
    others = f" (there are {', '.join(sorted(seen))})" if seen else ""
    return DataError(
        f"the folder {folder} holds no images{others}; known are "
        f"{', '.join(sorted(IMAGE_SUFFIXES))}"
    )


def _listing(folder: str) -> tuple[list[str], list[str]]:
    """The names of visible files and folders, sorted."""
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not _is_folder(entry):
                    files.append(entry.name)
                elif not _is_of_a_run(entry):
                    folders.append(entry.name)
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read: {error.strerror}") from error
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points to itself
        return False


def _is_of_a_run(entry: os.DirEntry[str]) -> bool:
    """Scores that are written beside the images, or are finished, must not become a class."""
    under_way = entry.name.endswith(".parts") and os.path.exists(f"{entry.path}/manifest.json")
    return under_way or os.path.exists(f"{entry.path}/_manifest.json")


def _identity(folder: str) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _images(folder: str, entered: set[tuple[int, int]]) -> Iterator[str]:
    """All images below a folder, depth first; `entered` are folders not to go into again."""
    pending = [folder]
    while pending:
        here = pending.pop()
        identity = _identity(here)
        if identity in entered:
            continue
        entered.add(identity)
        files, folders = _listing(here)
        yield from (os.path.join(here, name) for name in files if is_image(name))
        pending += [os.path.join(here, name) for name in reversed(folders)]
