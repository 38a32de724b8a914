"""Numbers that a user gives, of whatever kind: as Python's own, or refused by name.

NumPy's and PyTorch's numbers compare like Python's, and only fail when a file is to be written.
"""

import operator
from typing import Any

from tulip_ood.errors import InputError

__all__ = ["number", "samples", "truth", "whole"]


def number(name: str, value: Any) -> float:
    """A real number.

    Example:
        >>> import torch
        >>> number("false_alarm", torch.tensor(0.5))
        0.5
        >>> number("false_alarm", "5 %")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: false_alarm must be a number, got '5 %'
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a number, got {value!r}") from None


def truth(name: str, value: Any) -> bool:
    """Yes or no.

    Example:
        >>> truth("hold", False)
        False
        >>> truth("hold", "no")  # which would be taken for a yes
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: hold must be True or False, got 'no'
    """
    kind = type(value).__name__  # NumPy's need not be imported for this
    if kind not in ("bool", "bool_"):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def samples(value: Any, *, least: int = 1) -> int | str:
    """A number of noisy passes, or "auto".

    Example:
        >>> samples(0, least=0), samples("auto")
        (0, 'auto')
        >>> samples(0)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: n_samples must be a whole number of at least 1, or 'auto'; \
got 0
    """
    if isinstance(value, str) and value == "auto":
        return value
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise InputError(
            f"n_samples must be a whole number of at least {least}, or 'auto'; got {value!r}"
        )
    return found


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number that is not below `least`.

    Example:
        >>> whole("batch_size", 2.5)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: batch_size must be a whole number of at least 1, got 2.5
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return found
