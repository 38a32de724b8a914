"""A folder that was there when a run began and is not any more: a disk or a share that is gone.

A file that is missing is one row with a reason. Where all files are gone because their folder is,
everything that follows would become such rows, and a finished table would say nothing but that.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from tulip_ood.errors import DataError

__all__ = ["check_there", "common_folders", "there"]


def common_folders(paths: Iterable[str]) -> list[str]:
    """For every disk, the deepest folder below which all its files lie.

    Files in folders that are not there count nowhere: a list may name what never was.

    Example:
        >>> common_folders(["/usr/bin/a.png", "/usr/lib/b.png", "/no/such/c.png"])
        ['/usr']
    """
    on_disk: defaultdict[int, list[str]] = defaultdict(list)
    for folder in {os.path.dirname(path) or os.curdir for path in paths}:
        with suppress(OSError, ValueError):  # ValueError: a zero byte in the name
            on_disk[os.stat(folder).st_dev].append(os.path.abspath(folder))
    return sorted(map(os.path.commonpath, on_disk.values()))


def there(folders: Iterable[str]) -> tuple[str, ...]:
    """Those folders that can be read and hold something now.

    Example:
        >>> there(["/", "/no/such/folder"])
        ('/',)
    """
    return tuple(folder for folder in folders if _lost(folder) is None)


def check_there(folders: Iterable[str], path: str, reason: str, more: str = "") -> None:
    """Refuse to go on where a folder that was there is not any more.

    Args:
        folders: Those that were `there` in the beginning.
        path: A file that could not be read.
        reason: Why.
        more: What else there is to say.

    Example:
        >>> check_there(["/mnt/lost"], "/mnt/lost/1.png", "there is no such file")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: the folder /mnt/lost was there when this began, and now there \
is no such folder (the first file that is missed: /mnt/lost/1.png, there is no such file). Put it \
back, or mount its disk again, and run the same command again
    """
    for folder in folders:
        lost = _lost(folder)
        if lost is not None:
            raise DataError(
                f"the folder {folder} was there when this began, and now {lost} (the first file "
                f"that is missed: {path}, {reason}). Put it back, or mount its disk again, and run "
                f"the same command again{more}"
            )


def _lost(folder: str) -> str | None:
    """What is wrong with a folder; None if nothing is."""
    try:
        with os.scandir(folder) as entries:
            # Where a disk was mounted, an empty folder is left.
            return None if next(entries, None) is not None else "it is empty"
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such folder"
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
