"""Detectors that a user writes: found again by their name, if they can be.

A file names a method, never code: only classes that exist in this process already are looked at.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError

__all__ = ["check_own", "find_own", "is_own"]

_PACKAGE = __name__.partition(".")[0]
_TOLD_TO_LOAD = {"self", "model", "output", "device", "batch_size"}  # not stored in files


def is_own(kind: type[Detector]) -> bool:
    """Whether a class is a user's, and none of this library's.

    Example:
        >>> from tulip_ood.detectors import MSP
        >>> is_own(MSP), is_own(type("Mine", (MSP,), {"__module__": "theirs"}))
        (False, True)
    """
    return kind.__module__.partition(".")[0] != _PACKAGE


def find_own(name: str) -> type[Detector] | None:
    """The user's class with that `name`, or None; one that was defined twice is the last one.

    Example:
        >>> from tulip_ood.detectors import MSP
        >>> mine = type("Mine", (MSP,), {"__module__": "theirs", "name": "mine-1"})
        >>> find_own("mine-1") is mine, find_own("mine-2")
        (True, None)
    """
    known: list[type[Detector]] = Detector.__subclasses__()
    found: dict[str, type[Detector]] = {}
    for kind in known:  # it grows meanwhile
        known += kind.__subclasses__()
        if is_own(kind) and vars(kind).get("name") == name:
            found[_full_name(kind)] = kind
    if len(found) > 1:
        raise InputError(
            f"{' and '.join(found)} are both called {name!r}: give each class a name of its own"
        )
    return next(iter(found.values()), None)


def check_own(detector: Detector, config: Mapping[str, Any]) -> None:
    """Refuse to write a user's detector that could not be loaded again.

    Args:
        detector: Any detector; this library's own are let through.
        config: Its `configuration`, as it goes into the file.

    Example:
        >>> import torch, tulip_ood
        >>> mine = type("Mine", (tulip_ood.detectors.MSP,), {"__module__": "theirs"})
        >>> check_own(mine(torch.nn.Linear(2, 2)), {})
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: theirs.Mine has no name of its own (it is called 'msp', as \
its parent is), so that load could not find it: write name = "…" in the class
    """
    kind = type(detector)
    if not is_own(kind):
        return
    name = vars(kind).get("name")
    if name is None:
        inherited = getattr(kind, "name", None)
        called = "" if inherited is None else f" (it is called {inherited!r}, as its parent is)"
        raise InputError(
            f"{_full_name(kind)} has no name of its own{called}, so that load could not find it: "
            f'write name = "…" in the class'
        )
    from tulip_ood.detectors.registry import class_of  # it asks here for what it does not know

    found = class_of(name)
    if _full_name(found) != _full_name(kind):
        raise InputError(
            f"{_full_name(kind)} is called {name!r}, as {_full_name(found)} is, so that load would "
            f"not find it: give it another name"
        )
    lacking = [one for one in _arguments(kind) if one not in config.keys() | _TOLD_TO_LOAD]
    if lacking:
        raise InputError(
            f"{_full_name(kind)} is made with {', '.join(lacking)}, which would not stand in the "
            f"file: add {'it' if len(lacking) == 1 else 'them'} to the dict that configuration() "
            f"returns"
        )


def _arguments(kind: type[Detector]) -> list[str]:
    """What the constructors of a user's classes take by name."""
    own = [vars(part) for part in kind.__mro__ if issubclass(part, Detector) and is_own(part)]
    made = [part["__init__"] for part in own if "__init__" in part]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = (p for one in made for p in inspect.signature(one).parameters.values())
    return list(dict.fromkeys(p.name for p in taken if p.kind in named))


def _full_name(kind: type[Detector]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
