"""What a forked child must not inherit: locks that another thread held, hooks of a pass.

A child has one thread, the one that forked. A lock that another one held at that moment would never
be released there: a `DataLoader` with workers, started while a detector scores, would hang.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["fork_safe_lock", "hook_of_this_process"]

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


def hook_of_this_process(edit: Callable[[Any], Any]) -> Callable[..., Any]:
    """A forward hook that edits an output, and does nothing in a process forked meanwhile.

    Example:
        >>> hook_of_this_process(lambda out: -out)(None, (), 3)
        -3
    """
    ours = os.getpid()

    def hook(part: Any, args: Any, out: Any) -> Any:
        return edit(out) if os.getpid() == ours else None

    return hook


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # what the standard library does with its own


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_free)
