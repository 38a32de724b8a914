"""`timm:NAME[@none]`: networks of timm, with the data configuration that comes with them."""

import difflib
import math
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlparse

import torch

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.extras import (
    Found,
    first_weights,
    hub_place,
    import_extra,
    not_downloaded,
    one_line,
)
from tulip_ood.models.preparing import check_same, make_preprocess, refusal, square

__all__ = ["data_preprocess", "load_timm"]

_ELSEWHERE = ("hf-hub:", "hf_hub:", "local-dir:")  # timm's own prefixes: not in its list of names


def load_timm(spec: str) -> Found:
    """A network of timm's, with its default weights or (`@none`) random ones.

    Args:
        spec: For instance `timm:resnet50.a1_in1k` or `timm:vit_tiny_patch16_224@none`.

    Example:
        >>> load_timm("timm:")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: 'timm:' names no network; expected timm:NAME or \
timm:NAME@none, like timm:resnet50.a1_in1k
    """
    wanted = spec.removeprefix("timm:")
    name = wanted.removesuffix("@none")
    if not name:
        raise InputError(
            f"{spec!r} names no network; expected timm:NAME or timm:NAME@none, like "
            f"timm:resnet50.a1_in1k"
        )
    timm = import_extra("timm", extra="timm", spec=spec)
    data = import_extra("timm.data", extra="timm", spec=spec)
    if not name.startswith(_ELSEWHERE) and not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 3)
        meant = f"; do you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{spec}: timm has no network {name!r}{meant}")
    pretrained = name == wanted
    with first_weights():
        module = _create(timm, name, pretrained, spec)
    if getattr(module, "num_classes", None) == 0:
        raise ModelError(f"{spec} is no classifier: it gives features, without a last layer")
    settings = data.resolve_model_data_config(module)
    preprocess = data_preprocess(settings, spec)
    check_same(preprocess, data.create_transform(**settings, is_training=False), spec)
    about: Mapping[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    names = about.get("label_names") if pretrained else None
    return Found(module, preprocess, None if not names else tuple(map(str, names)))


def data_preprocess(settings: Mapping[str, Any], spec: str) -> Preprocess:
    """timm's data configuration as a `Preprocess`.

    Args:
        settings: `input_size, interpolation, mean, std, crop_pct, crop_mode`.
        spec: What the user wrote.

    Example:
        >>> settings = {"input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.95,
        ...             "crop_mode": "center", "mean": (0.5,) * 3, "std": (0.5,) * 3}
        >>> data_preprocess(settings, "timm:x").resize
        235
    """
    side = square(settings["input_size"][1:], spec, "input")
    mode = settings.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise refusal(spec, "it pads" if mode == "border" else f"its crop_mode is {mode!r}")
    return make_preprocess(
        spec,
        resize=math.floor(side / settings["crop_pct"]),
        crop=side,
        mean=settings["mean"],
        std=settings["std"],
        interpolation=settings["interpolation"],
        squash=mode == "squash",
    )


def _create(timm: Any, name: str, pretrained: bool, spec: str) -> Any:
    try:
        return timm.create_model(name, pretrained=pretrained)
    except OSError as error:
        raise not_downloaded(spec, error, _place(timm, name)) from error
    except RuntimeError as error:
        text = str(error)
        if "No pretrained weights" in text or "Invalid pretrained tag" in text:
            raise InputError(
                f"{spec}: timm has no such weights; timm.list_pretrained() has a list of all, and "
                f"timm:{name.partition('.')[0]}@none has random ones"
            ) from error
        raise FileFormatError(f"{spec}: the weights do not fit: {one_line(error)}") from error
    except Exception as error:
        raise ModelError(f"{spec}: making it failed: {one_line(error)}") from error


def _place(timm: Any, name: str) -> str:
    """Where timm looks for weights, in words."""
    if name.startswith(_ELSEWHERE):
        return hub_place(name.partition(":")[2])
    about = timm.get_pretrained_cfg(name)
    where = getattr(about, "hf_hub_id", None)
    if where:
        return hub_place(where)
    url = getattr(about, "url", None) or ""
    file = os.path.basename(urlparse(url).path)
    return f"in {os.path.join(torch.hub.get_dir(), 'checkpoints', file)} (from {url})"
