"""`hf:ORG/NAME` and `hf:/local/folder`: image classifiers of transformers, by their own processor.

Code that lies beside weights on the hub is never run, and weights are tensors only. Of the many
image processors those are known that resize the shorter side, or both sides to a square, and cut
out the centre. Where not as many rows or columns can be cut off on both sides, transformers cuts
the odd one off at the end (`crop_rounding="down"`).
"""

import os
from collections.abc import Mapping
from typing import Any

from tulip_ood.data.preprocess import INTERPOLATIONS, Preprocess
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.models.extras import Found, hub_place, import_extra, not_downloaded, one_line
from tulip_ood.models.preparing import check_same, make_preprocess, refusal, square
from tulip_ood.models.timm_zoo import data_preprocess

__all__ = ["load_hf", "processor_preprocess"]

_STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
_SQUASHED = 384  # from this side on ConvNext's processor squashes and does not crop
_NAMELESS = "LABEL_"  # how transformers calls outputs without names


def load_hf(spec: str) -> Found:
    """An image classifier of transformers, from the hub or from a folder (then nothing is fetched).

    Args:
        spec: For instance `hf:microsoft/resnet-50` or `hf:/models/mine`.

    Example:
        >>> load_hf("hf:/no/such/folder")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: hf:/no/such/folder: there is no folder /no/such/folder
    """
    place, local = _where(spec)
    network = import_extra(
        "transformers", extra="hf", spec=spec, name="AutoModelForImageClassification"
    )
    processors = import_extra("transformers", extra="hf", spec=spec, name="AutoImageProcessor")
    how = {"local_files_only": local, "trust_remote_code": False}
    module, about = _open(
        network, place, local, spec, weights_only=True, output_loading_info=True, **how
    )
    lacking = sorted({*about.get("missing_keys", ()), *map(str, about.get("mismatched_keys", ()))})
    if lacking:
        raise ModelError(
            f"{spec} is no trained classifier: its weights lack {', '.join(lacking[:3])}"
            f"{' …' if len(lacking) > 3 else ''}, which would be random"
        )
    processor = _open(processors, place, local, spec, **how)
    preprocess = processor_preprocess(processor.to_dict(), spec)

    def theirs(picture: Any) -> Any:
        return processor(images=picture, return_tensors="pt")["pixel_values"][0]

    check_same(preprocess, theirs, spec)
    return Found(module.float(), preprocess, _classes(module.config))


def _where(spec: str) -> tuple[str, bool]:
    place = os.path.expanduser(spec.removeprefix("hf:"))
    if os.path.isdir(place):
        return place, True
    if place.startswith((os.sep, ".")) or spec.startswith("hf:~"):
        raise FileFormatError(f"{spec}: there is no folder {place}")
    if place.count("/") > 1 or not all(place.split("/")):
        raise InputError(
            f"{spec!r} names no network; expected hf:ORG/NAME, like hf:microsoft/resnet-50, or "
            f"hf:FOLDER"
        )
    return place, False


def _open(auto: Any, place: str, local: bool, spec: str, **how: Any) -> Any:
    try:
        return auto.from_pretrained(place, **how)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{spec}: this network is code that lies beside its weights, and such code is not "
                f"run here. Write a function that builds it, and name it as package.module:factory"
            ) from error
        if local:
            raise FileFormatError(f"{spec} cannot be loaded: {one_line(error)}") from error
        if isinstance(error, OSError):
            raise not_downloaded(spec, error, hub_place(place)) from error
        raise ModelError(f"{spec} cannot be loaded: {one_line(error)}") from error


def _classes(config: Any) -> tuple[str, ...] | None:
    names = {int(i): str(name) for i, name in (getattr(config, "id2label", None) or {}).items()}
    if sorted(names) != list(range(len(names))):
        return None
    ordered = tuple(names[i] for i in range(len(names)))
    return None if not ordered or ordered[0].startswith(_NAMELESS) else ordered


def processor_preprocess(settings: Mapping[str, Any], spec: str) -> Preprocess:
    """The settings of one of transformers' image processors as a `Preprocess`.

    Args:
        settings: What its `to_dict` gives.
        spec: What the user wrote.

    Example:
        >>> settings = {"do_resize": True, "size": {"shortest_edge": 256}, "resample": 3,
        ...             "do_center_crop": True, "crop_size": {"height": 224, "width": 224},
        ...             "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        ...             "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
        >>> processor_preprocess(settings, "hf:a/b").interpolation
        'bicubic'
    """
    if "data_config" in settings:  # a network of timm's in transformers' clothes
        return data_preprocess(settings["data_config"], spec)
    unknown = [key for key in settings if key.startswith("do_") and key not in _STEPS]
    unknown = [key for key in unknown if settings[key]]
    if unknown:
        raise refusal(spec, f"its processor has the step {', '.join(unknown)}")
    factor = settings.get("rescale_factor", 1 / 255)
    if not settings.get("do_rescale") or abs(255 * factor - 1) > 1e-3:
        raise refusal(spec, "pixels are not scaled from 0 … 255 to 0 … 1")
    resize, crop, squash = _sides(settings, spec)
    plain = not settings.get("do_normalize")
    names = {int(code): name for name, code in INTERPOLATIONS.items()}
    code = settings.get("resample", 2)
    return make_preprocess(
        spec,
        resize=resize,
        crop=crop,
        mean=[0.0] * 3 if plain else settings["image_mean"],
        std=[1.0] * 3 if plain else settings["image_std"],
        interpolation=names.get(int(code), f"method {code}"),
        squash=squash,
        crop_rounding="down",
    )


def _sides(settings: Mapping[str, Any], spec: str) -> tuple[int | None, int, bool]:
    """The side after resizing, the crop, and whether both sides are resized."""
    edge, squash, cropped = None, False, None
    if settings.get("do_resize"):
        edge, squash, cropped = _resized(settings, spec)
    if settings.get("do_center_crop"):
        crop = settings.get("crop_size") or {}
        sides = [crop.get("height"), crop.get("width")] if isinstance(crop, Mapping) else crop
        cropped = square(sides, spec, "crop")
    if cropped is None:
        raise refusal(spec, "it does not crop, so that inputs have no common size")
    return edge, cropped, squash


def _resized(settings: Mapping[str, Any], spec: str) -> tuple[int, bool, int | None]:
    """The side after resizing, whether both sides are resized, and the side if all have one."""
    kind = str(settings.get("image_processor_type", ""))
    share = settings.get("crop_pct")
    size = settings.get("size")
    sized = size if isinstance(size, Mapping) else {}
    edge = sized.get("shortest_edge")
    if edge is None and sized.get("height") and sized.get("width"):
        side = square([sized["height"], sized["width"]], spec, "size")
        if share is None:
            return side, True, side
        edge = side  # PoolFormer's processor resizes the shorter side all the same
    if edge is None or sized.get("longest_edge"):
        raise refusal(spec, f"it resizes to {size}")
    if kind.startswith("ConvNext"):
        return (edge, True, edge) if edge >= _SQUASHED else (int(edge / (share or 1)), False, edge)
    if kind.startswith("Levit"):
        return int(256 / 224 * edge), False, None
    return int(edge / (share or 1)), False, None
