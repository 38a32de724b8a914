"""What this library raises and warns of.

Every message says what came, what was expected, and what to do. Catching `TulipError` catches
everything that is ours; the second base class lets ordinary handlers work too.
"""

import os
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from types import FrameType

__all__ = [
    "ClusterError",
    "DataError",
    "FileFormatError",
    "InputError",
    "ModelError",
    "NotFittedError",
    "RefusedError",
    "ThresholdError",
    "TulipError",
    "TulipWarning",
    "failure_in_network",
    "in_one_line",
    "kind_and_text",
    "place_in_network",
    "warn",
]


class TulipError(Exception):
    """The base of every error that this library raises on purpose.

    Example:
        >>> from tulip_ood.errors import InputError, TulipError
        >>> try:
        ...     raise InputError("the loader is empty")
        ... except TulipError as error:
        ...     print(error)
        the loader is empty
    """


class InputError(TulipError, ValueError):
    """An argument, an input or a label is not what was asked for.

    Example:
        >>> from tulip_ood.numerics.random import permutation
        >>> permutation(-1, seed=0, name="rows")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: n must not be negative, got -1
    """


class ModelError(TulipError, TypeError):
    """The network cannot be used as it is; the message says what to change.

    Example:
        >>> import tulip_ood
        >>> tulip_ood.Tulip("resnet50")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: expected a torch.nn.Module, got str: load the network \
first
    """


class RefusedError(ModelError, RuntimeError):
    """The network cannot run on such inputs; the message has what it said itself.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.zeros(50, 5), torch.zeros(50)
        >>> tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        Traceback (most recent call last):
        tulip_ood.errors.RefusedError: the network cannot run on inputs of shape [N, 5]: mat1 ...
    """


class NotFittedError(TulipError, RuntimeError):
    """Something was asked of a detector that only a fitted one can answer.

    Example:
        >>> import torch, tulip_ood
        >>> tulip_ood.Tulip(torch.nn.Linear(2, 3)).score(torch.zeros(1, 2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.NotFittedError: this detector is not fitted: call fit(val_loader) first
    """


class ThresholdError(TulipError, ValueError):
    """The asked-for guarantee cannot be given from this calibration data.

    Example:
        >>> from tulip_ood.errors import ThresholdError
        >>> issubclass(ThresholdError, ValueError)
        True
    """


class FileFormatError(TulipError, ValueError):
    """A file is damaged, of another kind, newer than this library, or made for another model.

    Example:
        >>> from tulip_ood.errors import FileFormatError
        >>> issubclass(FileFormatError, ValueError)
        True
    """


class DataError(TulipError, OSError):
    """Input data is missing or cannot be read.

    Example:
        >>> from tulip_ood.errors import DataError
        >>> issubclass(DataError, OSError)
        True
    """


class ClusterError(TulipError, RuntimeError):
    """Workers on other machines cannot do, or do not survive, what they are asked to.

    Example:
        >>> from tulip_ood.errors import ClusterError
        >>> issubclass(ClusterError, RuntimeError)
        True
    """


class TulipWarning(UserWarning):
    """Something degenerate or suspicious was found; the detector works, but read this.

    Example:
        >>> import warnings
        >>> from tulip_ood.errors import TulipWarning
        >>> with warnings.catch_warnings():  # make them errors in a pipeline
        ...     warnings.simplefilter("error", TulipWarning)
    """


_LENGTH = 300  # of what another library says, inside a message of ours


def in_one_line(error: BaseException) -> str:
    r"""What an error says, for the middle of another message; its kind, if it says nothing.

    Example:
        >>> in_one_line(ValueError("two\nlines")), in_one_line(AssertionError())
        ('two lines', 'AssertionError')
    """
    return " ".join(str(error).split())[:_LENGTH] or type(error).__name__


def kind_and_text(error: BaseException) -> str:
    """An error's kind and what it says, in one line.

    Example:
        >>> kind_and_text(KeyError("scores")), kind_and_text(AssertionError())
        ("KeyError: 'scores'", 'AssertionError')
    """
    kind, text = type(error).__name__, in_one_line(error)
    return kind if text == kind else f"{kind}: {text}"


def failure_in_network(error: BaseException) -> str:
    """That an error is one of a network's own code, and of which line; "" if it is not.

    Example:
        >>> failure_in_network(KeyError("mask"))
        ''
    """
    place = place_in_network(error)
    return place and f"the network's own code failed with {kind_and_text(error)}, in {place}"


def place_in_network(error: BaseException) -> str:
    """The line of a network's own code that an error came from; "" if from no network.

    Example:
        >>> import torch
        >>> try:
        ...     torch.nn.Embedding(2, 2)(torch.tensor([9]))
        ... except IndexError as error:
        ...     place_in_network(error).rpartition(" (")[0]
        'embedding'
        >>> place_in_network(KeyError("mask"))
        ''
    """
    within = list(traceback.walk_tb(error.__traceback__))
    while within and not _calls_module(within[0][0]):
        within.pop(0)
    own = [at for at in within if not _module_of(at[0]).startswith("torch.")]
    if not within or (own and _module_of(own[-1][0]).startswith(_PACKAGE)):
        return ""  # no network; or a hook of ours, or a network of ours
    # A line of the user's says more than one of a library that it calls.
    theirs = [at for at in own if not _is_installed(at[0].f_code.co_filename)]
    frame, line = (theirs or own or within)[-1]
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}, line {line})"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _calls_module(frame: FrameType) -> bool:
    """Every module is called there; what else stands in that file, as load_state_dict, is ours."""
    return _module_of(frame) == "torch.nn.modules.module" and frame.f_code.co_name == "_call_impl"


def _is_installed(file: str) -> bool:
    """Whether it belongs to Python, or to what was installed for one user, or for all of them."""
    parts = Path(file).parts
    return (
        file.startswith((sysconfig.get_path("stdlib") + os.sep, "<frozen "))
        or "site-packages" in parts
        or "dist-packages" in parts
    )


def warn(text: str) -> None:
    """Raise a `TulipWarning` that points at the user's line, however deep we are.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn("read this")
        >>> caught[0].category.__name__
        'TulipWarning'
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, TulipWarning, stacklevel=level)


_PACKAGE = __name__.partition(".")[0] + "."
