"""The JSON header of a detector file, looked at before anything is believed.

A file may come from anyone, and its checksum is anyone's to make: types are checked, and so is
whatever would make us compute or allocate without end.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch

from tulip_ood.errors import FileFormatError
from tulip_ood.version import __version__
from tulip_ood.wording import from_json

__all__ = ["FORMAT", "GOLDEN_INPUTS", "MOST_PASSES", "parse_header"]

FORMAT = 1
GOLDEN_INPUTS = 16
MOST_PASSES = 10_000  # that one input may cost because a file says so
_MOST_NUMBERS = 1 << 27  # in one golden input
_COUNTS = ("n_samples", "repeats")
_NESTED = 8  # parts in parts


def parse_header(raw: str, path: object) -> dict[str, Any]:
    """The header that a text holds; refuses what no release of ours would have written.

    Args:
        raw: The text.
        path: The file that it is from, for the message.

    Example:
        >>> parse_header('{"format": "one"}', "d.safetensors")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: d.safetensors has a damaged header: format is 'one'
    """
    try:
        header = from_json(raw)
    except ValueError as error:
        raise FileFormatError(f"{path} has a damaged header: {error}") from error
    if not isinstance(header, dict):
        raise FileFormatError(f"{path} has a damaged header: it is no JSON object")
    _check_format(header, path)
    missing = sorted(_FIELDS.keys() - header.keys() - _NOT_NEEDED)
    if missing:
        raise FileFormatError(f"{path} has a damaged header: no {', '.join(missing)}")
    for key, fits in _FIELDS.items():
        if not fits(header.get(key)):
            raise FileFormatError(f"{path} has a damaged header: {key} is {_shown(header[key])}")
    if (header["golden"] is None) != (header["inputs"] is None):
        raise FileFormatError(f"{path} has a damaged header: golden scores belong to inputs")
    _check_counts(header["config"], path)
    return header


def _check_format(header: Mapping[str, Any], path: object) -> None:
    """First of all: a newer file may look otherwise altogether."""
    version = header.get("format")
    if not _whole(version) or version < 1:
        raise FileFormatError(f"{path} has a damaged header: format is {_shown(version)}")
    if version > FORMAT:
        versions = header.get("versions")
        made_by = versions.get("tulip_ood") if isinstance(versions, dict) else None
        raise FileFormatError(
            f"{path} has format {version}, made by tulip-ood {made_by or 'of a newer release'}; "
            f"this is tulip-ood {__version__}, which reads up to format {FORMAT}: upgrade it"
        )


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _check_counts(config: Mapping[str, Any], path: object) -> None:
    """Those of a sum's parts too."""
    for name in _COUNTS:
        n = config.get(name, 1)
        if not _whole(n) or not 0 <= n <= MOST_PASSES:
            raise FileFormatError(
                f"{path} has a damaged header: {name} is {_shown(n)}, expected a whole number up "
                f"to {MOST_PASSES:,}"
            )
    for part in (config.get("inner") or {}).values():
        _check_counts(part, path)


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> TypeGuard[float]:
    """Also NaN and infinity, but no whole number that no float can hold."""
    return isinstance(value, float) or (_whole(value) and abs(value) < 1 << 63)


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isascii()


def _words(value: Any) -> bool:
    """A text in any language; half of a surrogate pair can be neither shown nor written."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _config(value: Any, depth: int = 0) -> bool:
    """The constructor's arguments; those of a sum's parts are in `inner`."""
    if not isinstance(value, dict) or not _text(value.get("task")) or depth > _NESTED:
        return False
    inner = value.get("inner") or {}
    return isinstance(inner, dict) and all(_config(part, depth + 1) for part in inner.values())


def _inputs(value: Any, depth: int = 0) -> bool:
    """As `network.golden.describe_inputs` gives it."""
    if not isinstance(value, dict) or depth > _NESTED:
        return False
    kind, items = value.get("kind"), value.get("items")
    if kind == "constant":
        return isinstance(value.get("value"), bool | int | float | str | None)
    if kind == "dict":
        return isinstance(items, dict) and all(_inputs(v, depth + 1) for v in items.values())
    if kind == "tuple":
        return isinstance(items, list) and all(_inputs(v, depth + 1) for v in items)
    return kind == "tensor" and _tensor(value)


def _tensor(value: Mapping[str, Any]) -> bool:
    dtype, shape = value.get("dtype"), value.get("shape")
    if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype, None), torch.dtype):
        return False
    if not isinstance(shape, list) or not all(_whole(n) and n >= 0 for n in shape):
        return False
    low, high = value.get("low"), value.get("high")
    if not (_number(low) and _number(high)):
        return False
    return math.prod(shape) <= _MOST_NUMBERS and -math.inf < low <= high < math.inf


def _threshold(value: Any) -> bool:
    fields: dict[str, Callable[[Any], bool]] = {
        "value": _number,
        "kind": lambda v: v in ("false_alarm", "max_error"),
        "target": _number,
        "confidence": _or_none(_number),
        "coverage": _number,
        "promise": _words,
    }
    return (
        isinstance(value, dict)
        and value.keys() == fields.keys()
        and all(fits(value[key]) for key, fits in fields.items())
    )


def _finding(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"code", "text"}
        and all(map(_words, value.values()))
    )


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _dict_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _golden(value: Any) -> bool:
    known = _list_of(_number)(value) and not any(map(math.isnan, value))
    return known and len(value) == GOLDEN_INPUTS


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "method": _text,
    "config": _config,
    "fitted": lambda value: isinstance(value, dict),
    "facts": lambda value: isinstance(value, dict) and _whole(value.get("n_outputs")),
    "findings": _list_of(_finding),
    "threshold": _or_none(_threshold),
    "cross_fitted": lambda value: isinstance(value, bool),
    "recipe": _or_none(_text),
    "architecture_sha256": _text,
    "weights_sha256": _text,
    "weights_dtypes": _or_none(_list_of(_text)),
    "model_spec": _or_none(_words),
    "preprocess": _or_none(lambda value: isinstance(value, dict)),
    "preprocess_sha256": _or_none(_text),
    "classes": _or_none(_list_of(_words)),
    "noise_checksum": _or_none(_text),
    "inputs": _or_none(_inputs),
    "golden": _or_none(_golden),
    "precision": _text,
    "versions": _dict_of(_text),
    "content_sha256": _or_none(_text),
}
# Without them a message says less, and that is all.
_NOT_NEEDED = {"recipe", "preprocess_sha256", "content_sha256", "weights_dtypes"}
