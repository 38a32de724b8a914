"""`torchvision:NAME[@WEIGHTS]`: torchvision's classifiers, with the weights' own transform."""

import contextlib
import difflib
import os
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlparse

import torch

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.models.extras import Found, first_weights, import_extra, not_downloaded, one_line
from tulip_ood.models.preparing import check_same, make_preprocess, refusal, square

__all__ = ["load_torchvision", "weights_preprocess"]

_LOADING = threading.Lock()


def load_torchvision(spec: str) -> Found:
    """A network of torchvision's.

    Without `@WEIGHTS` it has the weights that torchvision calls default; `@none` gives random
    ones, the same every time, and images are prepared as for the default weights.

    Args:
        spec: For instance `torchvision:resnet50@IMAGENET1K_V1`.

    Example:
        >>> load_torchvision("torchvision:@none")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: 'torchvision:@none' names no network; expected \
torchvision:NAME or torchvision:NAME@WEIGHTS, like torchvision:resnet50@IMAGENET1K_V1
    """
    name, at, wanted = spec.removeprefix("torchvision:").partition("@")
    if not name or (at and not wanted):
        raise InputError(
            f"{spec!r} names no network; expected torchvision:NAME or torchvision:NAME@WEIGHTS, "
            f"like torchvision:resnet50@IMAGENET1K_V1"
        )
    models = import_extra("torchvision.models", extra="vision", spec=spec)
    known = models.list_models(module=models)  # without detection, segmentation and video
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        meant = f"; do you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{spec}: torchvision has no classifier {name!r}{meant}")
    choices = models.get_model_weights(name)
    default = getattr(choices, "DEFAULT", None)
    if wanted == "none":
        with first_weights():
            module = models.get_model(name, weights=None)
        return Found(module, None if default is None else weights_preprocess(default, spec), None)
    weights = getattr(choices, wanted or "DEFAULT", None)
    if weights is None:
        names = [w.name for w in choices]
        raise InputError(f"{spec}: {name} has the weights {', '.join([*names, 'none'])}")
    classes = weights.meta.get("categories")
    if classes is None:
        raise InputError(f"{spec}: these weights are for features only, they have no last layer")
    preprocess = weights_preprocess(weights, spec)
    return Found(_with_weights(models, name, weights, spec), preprocess, tuple(classes))


def weights_preprocess(weights: Any, spec: str) -> Preprocess:
    """How images are prepared for weights, as their own transform does it with pictures.

    (A transform's `antialias` is about tensors; Pillow's resizing always smooths.)

    Args:
        weights: A member of one of torchvision's enumerations.
        spec: What the user wrote.

    Example:
        >>> from types import SimpleNamespace
        >>> weights_preprocess(SimpleNamespace(transforms=SimpleNamespace), "torchvision:x")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: torchvision:x prepares images in a way that cannot be \
repeated here: its transform is a SimpleNamespace without resize_size, crop_size, interpolation, \
mean, std. Prepare them yourself (npz with floating x), and name the network by a function of \
your own (package.module:factory)
    """
    transform = weights.transforms()
    wanted = ("resize_size", "crop_size", "interpolation", "mean", "std")
    lacking = [name for name in wanted if not hasattr(transform, name)]
    if lacking:
        kind = type(transform).__name__
        raise refusal(spec, f"its transform is a {kind} without {', '.join(lacking)}")
    mode = transform.interpolation
    preprocess = make_preprocess(
        spec,
        resize=square(transform.resize_size, spec, "size"),
        crop=square(transform.crop_size, spec, "crop"),
        mean=transform.mean,
        std=transform.std,
        interpolation=str(getattr(mode, "value", mode)),
        squash=len(transform.resize_size) == 2,  # two sides, not the shorter one
    )
    return check_same(preprocess, transform, spec)


def _with_weights(models: Any, name: str, weights: Any, spec: str) -> Any:
    # The builder is called with the weights: they decide more than the parameters (image size,
    # auxiliary outputs).
    file = os.path.basename(urlparse(weights.url).path)
    place = os.path.join(torch.hub.get_dir(), "checkpoints", file)
    try:
        with _weights_only(weights):
            return models.get_model(name, weights=weights)
    except pickle.UnpicklingError as error:
        raise FileFormatError(f"{spec}: {place} is not opened: {one_line(error)}") from error
    except OSError as error:
        raise not_downloaded(spec, error, f"in {place} (from {weights.url})") from error
    except RuntimeError as error:  # another hash than the file's name says, or other shapes
        raise FileFormatError(
            f"{spec}: {place} does not hold these weights: {one_line(error)}. Remove it if it was "
            f"cut short, or is another file"
        ) from error


@contextlib.contextmanager
def _weights_only(weights: Any) -> Iterator[None]:
    """torchvision unpickles whatever a file holds; for these weights, now, it may be tensors only.

    Set on this one member of the enumeration, and taken away again.
    """
    with _LOADING:
        weights.get_state_dict = partial(weights.get_state_dict, weights_only=True)
        try:
            yield
        finally:
            del weights.get_state_dict
