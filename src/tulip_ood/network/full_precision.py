"""Single precision that is single: TF32 and its like are off while our passes run.

With TF32 the products inside a float32 network have 10 bits, and the small differences that the
bound is made of drown in rounding. The switches belong to the process, so they are put back after
every pass; a forward of the user's own in another thread may find them off meanwhile.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from tulip_ood.network.forking import fork_safe_lock

__all__ = ["full_precision"]

_Found = TypeVar("_Found")
_EXACT = ("ieee", "none")
_lock = fork_safe_lock()
_depth = 0
_saved: tuple[Any, ...] = ()


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products in float32; what the user had set is back at the end.

    Several threads may be inside at once: the first one in switches, the last one out restores.

    Example:
        >>> torch.set_float32_matmul_precision("high")
        >>> with full_precision():
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'high'
        >>> torch.set_float32_matmul_precision("highest")
    """
    global _depth, _saved
    with _lock:
        if _depth == 0:
            _saved = _switch_off()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _restore(*_saved)


def _backends() -> list[Any]:
    b: Any = torch.backends
    return [
        b.cuda.matmul,
        b.cudnn.conv,
        b.cudnn.rnn,
        b.mkldnn.matmul,
        b.mkldnn.conv,
        b.mkldnn.rnn,
    ]


def _switch_off() -> tuple[Any, ...]:
    # PyTorch has an old set of switches and a new one, and the old ones cannot be read once the
    # new ones were used otherwise. Both are kept in step, for whoever reads them inside a pass.
    products = _readable(torch.get_float32_matmul_precision)
    convolutions = _readable(lambda: torch.backends.cudnn.allow_tf32)
    switches = [backend.fp32_precision for backend in _backends()]
    if products is not None:
        torch.set_float32_matmul_precision("highest")
    if convolutions is not None:
        torch.backends.cudnn.allow_tf32 = False
    for backend in _backends():
        if backend.fp32_precision not in _EXACT:
            backend.fp32_precision = "ieee"
    return products, convolutions, switches


def _restore(products: str | None, convolutions: bool | None, switches: list[str]) -> None:
    if products is not None:
        torch.set_float32_matmul_precision(products)
    if convolutions is not None:
        torch.backends.cudnn.allow_tf32 = convolutions
    for backend, value in zip(_backends(), switches, strict=True):
        if backend.fp32_precision != value:
            backend.fp32_precision = value


def _readable(read: Callable[[], _Found]) -> _Found | None:
    try:
        return read()
    except RuntimeError:
        return None


def _in_child() -> None:
    """The threads that were inside are not in a forked child: nobody else would restore."""
    global _depth
    if _depth:
        _depth = 0
        _restore(*_saved)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
