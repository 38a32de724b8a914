"""Files that may be anyone's: they must end, and what is wrong with them is said in our words."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from tulip_ood.data.remote import is_remote
from tulip_ood.errors import DataError, TulipError, in_one_line

__all__ = ["check_regular", "foreign"]


def check_regular(file: str) -> None:
    """Refuse what would make us wait or read for ever: a pipe, a device; URIs have none.

    Example:
        >>> check_regular("/dev/zero")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: /dev/zero is not a regular file
    """
    if is_remote(file):
        return
    try:
        mode = os.stat(file).st_mode
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        words = getattr(error, "strerror", None) or error
        raise DataError(f"{file} cannot be read: {words}") from error
    if not stat.S_ISREG(mode):
        raise DataError(f"{file} is not a regular file")


@contextmanager
def foreign(file: str, expected: str) -> Iterator[None]:
    """What goes wrong inside, in any library, means that a file is not what it should be.

    Args:
        file: The file.
        expected: What it should be, for the message.

    Example:
        >>> with foreign("x.npz", "an npz file"):
        ...     raise EOFError("no data left")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: x.npz is not an npz file, or it is cut short or damaged: no \
data left
    """
    try:
        yield
    except TulipError:
        raise
    except Exception as error:  # zip, deflate, numpy and Arrow each have errors of their own
        raise DataError(
            f"{file} is not {expected}, or it is cut short or damaged: {in_one_line(error)}"
        ) from error
