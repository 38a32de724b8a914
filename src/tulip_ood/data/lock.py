"""One run at a time into one output: a lock file with the process's number.

The lock is the kernel's (`flock`), so it goes with the process, however that ends: a file left
behind by a dead one is taken over, and a number that was given to another process since does not
mislead. The number inside is for people.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tulip_ood.errors import DataError

__all__ = ["locked"]


@contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """Hold the lock file at `path`, or refuse because another process does.

    Args:
        path: The lock file; removed at the end.
        what: What is being protected, for the message.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(f"{folder}/lock", "x.parquet"):
        ...     print(sorted(os.listdir(folder)))
        ['lock']
    """
    descriptor = _take(path, what)
    try:
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:  # a full disk, which does not say whose file it was
            raise DataError(f"{what} cannot be written: {error.strerror}") from error
        yield
    finally:
        # Removed while still held: who opened it before sees that it is gone and tries again.
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _take(path: str, what: str) -> int:
    import fcntl  # not on Windows

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise DataError(
                f"another run{f' (process {holder})' if holder else ''} is writing {what}: wait "
                f"for it, or stop it; what it has finished is kept"
            ) from None
        os.close(descriptor)


def _is_still(path: str, descriptor: int) -> bool:
    """Whether the file that we locked is the one that bears the name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
