"""What the user named, opened: a folder, a list, parquet, npz, or images one by one."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from tulip_ood.data.folder import class_folders, is_image, open_folder, visible_files
from tulip_ood.data.imagelist import open_list
from tulip_ood.data.remote import (
    bare,
    is_remote,
    open_remote_folder,
    remote_files,
    remote_folders,
    stamp_of,
)
from tulip_ood.data.source import Chain, ImageFiles, Source
from tulip_ood.errors import DataError
from tulip_ood.wording import counted

__all__ = [
    "all_class_folders",
    "classes_of_outputs",
    "number_folders",
    "open_sources",
    "read_classes",
]

_GIVE_ALL = (
    "give the names of all class folders in the order of the network's outputs, one a line "
    "(--classes)"
)


def open_sources(
    names: Sequence[str], *, classes: Sequence[str] | None = None, root: str | None = None
) -> Source:
    """One source out of all that was named, in order.

    Args:
        names: Folders (of images, or of `.parquet` files), `.txt` lists, `.parquet`, `.npz`, or
            image files; on this machine, or URIs of any file system that pyarrow knows.
        classes: The names of the classes in the network's order, for class folders.
        root: What the paths in lists are relative to.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "tom.png")
        ...     path.touch()
        ...     len(open_sources([folder, str(path)]))
        2
    """
    if root is not None and not is_remote(root) and not os.path.isdir(root):
        raise DataError(f"there is no folder {root}, in which paths of lists begin (--root)")
    sources: list[Source] = []
    single: list[str] = []  # neighbouring image files are one source, not thousands
    for name in names:
        path = bare(name)
        if is_image(path) and not _is_folder(name):
            single.append(name)
            continue
        if single:
            sources.append(_files(single))
            single = []
        sources.append(_open(name, classes, root))
    if single:
        sources.append(_files(single))
    if not sources:
        raise DataError("no inputs were named: give a folder, a list, parquet, npz or images")
    _check_classes(sources, classes)
    return sources[0] if len(sources) == 1 else Chain(sources)


def _is_folder(name: str) -> bool:
    """Whether a folder has this name; refuses a name that nothing has."""
    if is_remote(name):
        found = stamp_of(name)
        there, folder = found is None or found.size >= 0, found is None
    else:
        there, folder = os.path.exists(name), os.path.isdir(name)
    if not there:
        glob = ": patterns are for the shell, give them without quotes" if "*" in name else ""
        raise DataError(f"there is no file or folder {name or repr(name)}{glob}")
    return folder


def _files(paths: list[str]) -> ImageFiles:
    return ImageFiles(", ".join(paths[:3]), list(paths), [None] * len(paths))


def _open(name: str, classes: Sequence[str] | None, root: str | None) -> Source:
    if _is_folder(name):
        tables = _tables(name)
        if tables:
            return _open_tables(name, tables, root)
        return open_remote_folder(name, classes) if is_remote(name) else open_folder(name, classes)
    path = bare(name)
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".txt":
        return open_list(name, root)
    if suffix == ".parquet":
        from tulip_ood.data.parquet import Parquet  # pyarrow takes a while to load

        return Parquet(name, root)
    if suffix == ".npz":
        from tulip_ood.data.arrays import Arrays

        return Arrays(name)
    raise DataError(f"{name}: expected a folder, an image list (.txt), .parquet, .npz, or an image")


def _open_tables(folder: str, tables: Sequence[str], root: str | None) -> Source:
    """One long table; scores that were written beside the images are none of it."""
    from tulip_ood.data.parquet import OfScoresError, Parquet  # pyarrow takes a while to load

    sources: list[Source] = []
    for table in tables:
        with suppress(OfScoresError):
            sources.append(Parquet(table, root))
    if not sources:
        raise DataError(f"the folder {folder} holds tables of scores, and none of images")
    return Chain(sources)


def _tables(folder: str) -> list[str]:
    """The parquet files in a folder that holds neither images nor class folders."""
    if is_remote(folder):
        files, inside = remote_files(folder), remote_folders(folder)
    else:
        files, inside = visible_files(folder), class_folders(folder)
    names = [bare(name) for name in files]
    if inside or any(map(is_image, names)):
        return []
    return [file for file, name in zip(files, names, strict=True) if name.endswith(".parquet")]


def _check_classes(sources: Sequence[Source], classes: Sequence[str] | None) -> None:
    """Class folders number their labels by name: two folders must mean the same by a number."""
    if classes is not None:
        return
    named = {s.classes: s.name for s in sources if isinstance(s, ImageFiles) and s.classes}
    if len(named) > 1:
        first, second = list(named.values())[:2]
        raise DataError(
            f"{first} and {second} have different class folders, so their labels cannot be "
            f"numbered alike: give the classes in the network's order, one name a line (--classes)"
        )


def all_class_folders(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the class folders in all that was named, sorted.

    Args:
        names: As for `open_sources`; of lists, parquet, npz and images nothing is looked at.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("val/dog", "val/cat", "test/cow"):
        ...         pathlib.Path(root, name).mkdir(parents=True)
        ...     all_class_folders([f"{root}/val", f"{root}/test", "more.npz"])
        ('cat', 'cow', 'dog')
    """
    here = (class_folders(name) for name in names if os.path.isdir(name))
    there = (remote_folders(name) for name in names if is_remote(name) and stamp_of(name) is None)
    return tuple(sorted(set().union(*here, *there)))


def classes_of_outputs(task: str, outputs: int) -> int | None:
    """How many classes a network's outputs tell apart; None where folders cannot be labels.

    Example:
        >>> classes_of_outputs("classification", 10), classes_of_outputs("binary", 1)
        (10, 2)
    """
    return {"classification": outputs, "binary": 2}.get(task)


def number_folders(
    folders: Sequence[str], *, known: Sequence[str] | None = None, outputs: int | None = None
) -> tuple[str, ...] | None:
    """Which output each class folder stands for, where the user does not say it (`--classes`).

    Folders that are called like the network's classes are these. If none is, and there are as many
    as outputs, they are numbered in sorted order: so ImageNet's folders (n01440764, …) fit a
    network whose classes have human names. Some folders with and some without the name of a class
    are not numbered in sorted order: those without have no label.

    Args:
        folders: The names of all class folders.
        known: The names of the network's outputs, in order.
        outputs: How many it has; None if that is not known yet.

    Returns:
        The classes for `open_sources`; without class folders, what is known.

    Example:
        >>> number_folders(["cat", "dog"], known=["dog", "cow", "cat"])
        ('dog', 'cow', 'cat')
        >>> number_folders(["n01440764", "n01443537"], known=["tench", "goldfish"])
        ('n01440764', 'n01443537')
        >>> number_folders(["cat", "dog"], outputs=10)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: 2 class folders do not fit 10 outputs (cat, dog): give the \
names of all class folders in the order of the network's outputs, one a line (--classes)
    """
    if not folders:
        return None if known is None else tuple(known)
    times = Counter(known or ())
    named = [name for name in folders if name in times]
    for name in named:
        if times[name] > 1:
            raise DataError(
                f"the network has {times[name]} classes called {name!r}, so the folder of that "
                f"name fits no single one: {_GIVE_ALL}"
            )
    if named and known is not None:
        return tuple(known)
    if outputs is None and known is not None:
        outputs = len(known)
    if outputs is not None and len(folders) != outputs:
        nameless = "" if known is None else ", and none has the name of one of the classes"
        first = ", ".join(folders[:3]) + (", …" if len(folders) > 3 else "")
        raise DataError(
            f"{counted(len(folders), 'class folder')} {'does' if len(folders) == 1 else 'do'} not "
            f"fit {counted(outputs, 'output')}{nameless} ({first}): {_GIVE_ALL}"
        )
    return tuple(sorted(folders))


def read_classes(file: str) -> tuple[str, ...]:
    r"""Class names, one a line, in the order of the network's outputs.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "classes.txt")
        ...     _ = path.write_text("dog\ncat\n")
        ...     read_classes(str(path))
        ('dog', 'cat')
    """
    try:
        with open(file, encoding="utf-8-sig") as lines:
            names = tuple(line.strip() for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the classes in {file} cannot be read: {error}") from error
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise DataError(f"{file} names {repeated[0]!r} twice: every class needs one line")
    if not names:
        raise DataError(f"{file} names no classes: expected one name a line")
    return names
