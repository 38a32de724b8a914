"""Locks that a forked child can take, also where another thread of its parent held them.

A child has one thread, the one that forked. A lock that another one held at that moment would never
be released there: a `DataLoader` with workers, started while a detector scores, would hang.
"""

import os
import threading
import weakref
from typing import Any

__all__ = ["fork_safe_lock"]

_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock that is free in a forked child.

    Example:
        >>> with fork_safe_lock() as taken:
        ...     taken
        True
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # what the standard library does with its own


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_free)
