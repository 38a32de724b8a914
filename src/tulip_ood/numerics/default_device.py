"""Our own tensors lie on the CPU, also where a user has set another default device.

`torch.set_default_device("cuda")`, or `with torch.device("cuda")`, moves whatever is made without a
device, ours too, which then meets tensors on the CPU. The user's code that we call in between, a
model or a loader, is to find the default as the user has left it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

__all__ = ["on_the_cpu", "where_the_user_is"]

_theirs: ContextVar[torch.device | None] = ContextVar("_theirs", default=None)


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """While our code runs: what is made without a device lies on the CPU. Decorates functions.

    Example:
        >>> with torch.device("meta"), on_the_cpu():
        ...     torch.zeros(1)
        tensor([0.])
    """
    device = torch.get_default_device()
    if device.type == "cpu":  # at no cost: a mode is asked about every operation
        yield
        return
    token = _theirs.set(device)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _theirs.reset(token)


@contextmanager
def where_the_user_is() -> Iterator[None]:
    """While the user's code runs within ours: the default device is theirs again.

    Example:
        >>> with torch.device("meta"), on_the_cpu(), where_the_user_is():
        ...     torch.zeros(1).device.type
        'meta'
    """
    device = _theirs.get()
    if device is None:
        yield
        return
    with torch.device(device):
        yield
