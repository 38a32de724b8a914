"""What networks from other libraries need: packages that may be absent or broken, and downloads."""

import contextlib
import importlib
import os
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import ModelError, kind_and_text

__all__ = ["Found", "first_weights", "hub_place", "import_extra", "not_downloaded", "one_line"]

# What torchvision says when its compiled operators do not load beside this torch; and what it says
# when it is imported once more after that.
_MISFIT = ("torchvision::nms", "partially initialized module 'torchvision'")


class Found(NamedTuple):
    """A network, how images are prepared for it, and what its outputs are called.

    Example:
        >>> Found(nn.Linear(2, 3), None, ("cat", "dog", "cow")).classes[1]
        'dog'
    """

    module: nn.Module
    preprocess: Preprocess | None
    classes: tuple[str, ...] | None


def one_line(error: BaseException) -> str:
    r"""An error's kind and its text, for the middle of another message.

    Example:
        >>> one_line(ValueError("two\nlines"))
        'ValueError: two lines'
    """
    if isinstance(error, pickle.UnpicklingError):  # torch advises to open such files nevertheless
        return "it is damaged, or holds more than tensors (which could run code)"
    return kind_and_text(error)


def import_extra(package: str, *, extra: str, spec: str, name: str | None = None) -> Any:
    """A package that comes with an extra, or one line that says how to get it.

    Args:
        package: To be imported.
        extra: The extra of ours that it comes with.
        spec: What the user wrote.
        name: Something in the package that is wanted instead of the package itself.

    Example:
        >>> import_extra("no_such_package", extra="vision", spec="torchvision:resnet50")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: torchvision:resnet50 needs the package no_such_package: pip \
install 'tulip-ood[vision]'
    """
    try:
        module = importlib.import_module(package)
        return module if name is None else getattr(module, name)
    except Exception as error:  # compiled packages fail in many ways
        if any(words in text for text in _said(error) for words in _MISFIT):
            raise ModelError(_misfit(spec)) from error
        root = package.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (root, package):
            raise ModelError(
                f"{spec} needs the package {root}: pip install 'tulip-ood[{extra}]'"
            ) from error
        what = package if name is None else f"{package}.{name}"
        raise ModelError(f"{spec}: importing {what} failed: {one_line(error)}") from error


def _said(error: BaseException | None) -> Iterator[str]:
    """The texts of an error and of all that led to it."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _misfit(spec: str) -> str:
    return (
        f"{spec}: the installed torchvision was built for another torch than the one here "
        f"({torch.__version__}), so it cannot be imported. Install both from the same index, for "
        f"instance: pip install --force-reinstall torch torchvision --index-url "
        f"https://download.pytorch.org/whl/cpu"
    )


def not_downloaded(spec: str, error: BaseException, place: str) -> ModelError:
    """What to raise where weights are neither here nor to be had.

    Args:
        spec: What the user wrote.
        error: Why they could not be fetched.
        place: Where they are expected, in words.

    Example:
        >>> print(not_downloaded("timm:vgg16", OSError("no route"), "in /cache/vgg16"))
        timm:vgg16: the weights are not here and could not be downloaded (OSError: no route). \
They are expected in /cache/vgg16
    """
    return ModelError(
        f"{spec}: the weights are not here and could not be downloaded ({one_line(error)}). They "
        f"are expected {place}"
    )


def hub_place(name: str) -> str:
    """Where files of a repository of the Hugging Face hub are looked for, in words.

    Example:
        >>> hub_place("microsoft/resnet-50").partition("models--")[2]
        'microsoft--resnet-50 (where there is a connection: hf download microsoft/resnet-50)'
    """
    try:
        folder = importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE
    except ImportError:
        folder = os.path.join(os.path.expanduser("~"), ".cache", "huggingface", "hub")
    inside = os.path.join(folder, f"models--{name.replace('/', '--')}")
    return f"in {inside} (where there is a connection: hf download {name})"


@contextlib.contextmanager
def first_weights() -> Iterator[None]:
    """Random weights that are the same every time (libraries draw from the global generator).

    A detector that was fitted on `@none` finds its network again; the generator is put back.

    Example:
        >>> with first_weights():
        ...     a = nn.Linear(2, 2)
        >>> with first_weights():
        ...     b = nn.Linear(2, 2)
        >>> torch.equal(a.weight, b.weight)
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
