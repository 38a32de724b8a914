"""A class of ours that is one of another library's too, where that library can be imported.

Some libraries ask `isinstance(x, TheirBase)`. Deriving from it at import time would need (and load)
the library; so the class is chosen when an instance is made.
"""

import importlib
import types
from collections.abc import Callable
from typing import Any, ClassVar, Self

from tulip_ood.errors import TulipError

__all__ = ["Guest", "as_theirs", "found"]


def found(module: str, name: str) -> type | None:
    """A class of another library, or None where that cannot be imported.

    Example:
        >>> found("collections", "OrderedDict").__name__, found("no.such.library", "Base")
        ('OrderedDict', None)
    """
    try:
        theirs = getattr(importlib.import_module(module), name)
    except Exception:  # broken in whatever way: then nobody asks for its class either
        return None
    return theirs if isinstance(theirs, type) else None


class Guest:
    """Instances are of `hosts` too: (module, class) pairs of another library, if it is there.

    Example:
        >>> from collections import UserDict
        >>> class Settings(Guest):
        ...     hosts = (("collections", "UserDict"), ("no.such.library", "Base"))
        >>> isinstance(Settings(), UserDict), isinstance(Settings(), Settings)
        (True, True)
    """

    hosts: ClassVar[tuple[tuple[str, str], ...]] = ()
    _written: ClassVar[type | None] = None  # the class as it stands in the source

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """An instance of the class that has their bases."""
        theirs = [found(module, name) for module, name in cls.hosts]
        missing = tuple(t for t in theirs if t is not None and not issubclass(cls, t))
        made: Self = object.__new__(_joined(cls, missing) if missing else cls)
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, dict[str, Any]]]:
        """By the written class: the other one is made anew, where it is unpickled or copied."""
        return _restored, (self._written or type(self), self.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled."""
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled."""
        self.__dict__.update(state)


def _joined(cls: type, theirs: tuple[type, ...]) -> type[Any]:
    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        namespace |= {"__doc__": cls.__doc__, "_written": cls}

    return _once((cls, *theirs), fill)


def _restored(cls: type[Guest], state: dict[str, Any]) -> Guest:
    made = cls.__new__(cls)
    made.__setstate__(state)
    return made


def as_theirs(error: TulipError, module: str, name: str) -> TulipError:
    """The same error, one that handlers of another library's exception catch as well.

    Example:
        >>> from tulip_ood.errors import NotFittedError
        >>> error = as_theirs(NotFittedError("fit first"), "builtins", "LookupError")
        >>> isinstance(error, NotFittedError), isinstance(error, LookupError), str(error)
        (True, True, 'fit first')
    """
    theirs = found(module, name)
    if theirs is None or isinstance(error, theirs):
        return error
    made: TulipError = _both(type(error), theirs)(*error.args)
    return made


def _both(ours: type, theirs: type) -> type[Any]:
    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": ours.__module__, "__qualname__": ours.__qualname__}
        # Theirs may ask for other arguments than a text.
        namespace["__init__"] = lambda self, *args: Exception.__init__(self, *args)

    return _once((ours, theirs), fill)


_made: dict[tuple[type, ...], type] = {}


def _once(bases: tuple[type, ...], fill: Callable[[dict[str, Any]], None]) -> type:
    """One class for the same bases: two instances of ours are of one class."""
    if bases not in _made:
        _made[bases] = types.new_class(bases[0].__name__, bases, exec_body=fill)
    return _made[bases]
