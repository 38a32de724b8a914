"""Is a model the one that a detector file was fitted on?"""

import os
from typing import Any

from tulip_ood.detectors.base import Detector
from tulip_ood.errors import FileFormatError

__all__ = ["check_model"]

_CONVERSIONS = {
    "float16": "model.half()",
    "bfloat16": "model.bfloat16()",
    "float32": "model.float()",
    "float64": "model.double()",
}


def check_model(detector: Detector, header: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse another network than the one that a file was fitted on, and say what is other.

    Args:
        detector: Made from the file, for the user's model.
        header: The file's.
        path: Where that is.

    Example:
        >>> import torch, tulip_ood
        >>> model = torch.nn.Linear(2, 2)
        >>> then = tulip_ood.detectors.MSP(model).network.fingerprint()
        >>> now = tulip_ood.detectors.MSP(model.double())
        >>> check_model(now, {**then, "weights_dtypes": ["float32"]}, "d")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: d was fitted on this architecture in float32, and this ...
    """
    now = detector.network.fingerprint()
    if now["architecture_sha256"] != header["architecture_sha256"]:
        raise FileFormatError(
            f"{path} was fitted on another architecture than this model "
            f"({type(detector.network.module).__name__}): load the model it was fitted on, or fit "
            f"a new detector"
        )
    if now["weights_sha256"] != header["weights_sha256"]:
        _check_kinds(detector.network.kinds, header.get("weights_dtypes"), path)
        raise FileFormatError(
            f"{path} was fitted on other weights (or buffers) of this architecture: load those, "
            f"or fit again (tulip calibrate --like {path} keeps the recipe and compares)"
        )


def _check_kinds(now: list[str], then: list[str] | None, path: str | os.PathLike[str]) -> None:
    """The same network in other numbers is another one to the last bit, but one line away."""
    if then is None or now == then:
        return
    convert = _CONVERSIONS.get(then[0]) if len(then) == 1 else None
    way = "in the same numbers" if convert is None else f"in {then[0]} ({convert})"
    raise FileFormatError(
        f"{path} was fitted on this architecture in {' and '.join(then) or 'no floating point'}, "
        f"and this model is in {' and '.join(now) or 'no floating point'}: give the model {way}, "
        f"read from its checkpoint anew if it was rounded meanwhile, or fit again"
    )
