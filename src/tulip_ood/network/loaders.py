"""What a user gives to be read: batches, one after the other."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.default_device import where_the_user_is

__all__ = ["batches"]

_EXPECTED = "expected a loader (an iterable of batches)"


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader; a pair of tensors (X, y) counts as one batch.

    A `DataLoader` draws from PyTorch's random state, to shuffle and to seed its workers. It has one
    of its own here that begins as the process's: reading leaves no trace, also if broken off.

    Example:
        >>> import torch
        >>> len(list(batches((torch.zeros(4, 2), torch.zeros(4)))))
        1
    """
    if (
        isinstance(loader, tuple)
        and len(loader) == 2
        and all(isinstance(part, Tensor) for part in loader)
        and loader[0].shape[:1] == loader[1].shape[:1]
    ):
        return iter([loader])
    if isinstance(loader, str | bytes | os.PathLike):
        raise InputError(
            f"{_EXPECTED}, got {loader!r}: read the files with a DataLoader, or in the shell with "
            f"tulip calibrate … --data {os.fsdecode(loader)}"
        )
    if isinstance(loader, Mapping):  # to iterate over it gives its keys
        raise InputError(f"{_EXPECTED}, got {type(loader).__name__}: put a single batch in a list")
    return _Reading(loader)


class _Reading:
    """Iterates over a loader with a random state (PyTorch's, on the CPU) of the loader's own.

    Not a generator: one that an error has broken off is closed, and restores, at some later time.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._state = torch.get_rng_state()
        with self._own_state():
            try:
                self._iterator = iter(loader)
            except TypeError:
                raise InputError(f"{_EXPECTED}, got {type(loader).__name__}") from None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._own_state():
            return next(self._iterator)

    @contextmanager
    def _own_state(self) -> Iterator[None]:
        theirs = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            with where_the_user_is():
                yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(theirs)
