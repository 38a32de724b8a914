"""Which detectors can become a file of their own, and what to say of the others."""

from typing import Any

import torch

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.knn import KNN
from tulip_ood.detectors.logits import LogitDetector
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.registry import METHODS
from tulip_ood.detectors.tempscale import TemperatureScaling
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError
from tulip_ood.network.golden import synthetic_inputs
from tulip_ood.network.inputs import Inputs

__all__ = ["EXPORTABLE", "calm", "check_exportable", "example_inputs"]

# Their scores are functions of the logits and penultimate features of some passes, of the mirror
# image and of inner stages: see `scoring`.
_KINDS: tuple[type[Detector], ...] = (
    LogitDetector,
    TemperatureScaling,
    NoiseAveraging,
    Tulip,
    KNN,
    NCI,
    FDBD,
    Depth,
    Sum,
)
EXPORTABLE = tuple(name for name, m in METHODS.items() if issubclass(m.detector, _KINDS))
_TASKS = ("classification", "binary", "multilabel", "regression")
_EXAMPLES = 4


def check_exportable(detector: Detector) -> None:
    """Refuse a detector that cannot be exported; says which can.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> odin = tulip_ood.detectors.make("odin", torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> check_exportable(odin)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: odin cannot be exported: there is no graph for the score of \
odin. These can, and sums of them: msp, ent, mls, ebo, gen, tempscale, react, ash-b, ash-s, ash-p, \
scale, knn, fdbd, nci, noise, tulip, auto
    """
    unknown = _without_graph(detector)
    if unknown is not None:
        raise InputError(
            f"{detector.name} cannot be exported: there is no graph for the score of "
            f"{unknown.name}. These can, and sums of them: {', '.join(EXPORTABLE)}"
        )
    if detector.task.name not in _TASKS:
        raise InputError(
            f"task {detector.task.name!r} cannot be exported; these can: {', '.join(_TASKS)}"
        )
    if detector.network.dtype not in (torch.float32, torch.float64):
        raise InputError(
            "this detector was fitted in half precision, which only an accelerator repeats: fit it "
            "with precision='float32' to export it"
        )
    detector._ready()


def _without_graph(detector: Detector) -> Detector | None:
    """The detector, or the first part of a sum, that is not known here."""
    if isinstance(detector, Sum):
        parts = (_without_graph(part) for part in detector.parts)
        return next((part for part in parts if part is not None), None)
    return None if isinstance(detector, _KINDS) else detector


def example_inputs(detector: Detector, n: int = _EXAMPLES) -> Inputs:
    """A few inputs like those that the detector was fitted on.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> example_inputs(detector).shape
        torch.Size([4, 4])
    """
    if detector.engine.inputs is None:
        raise InputError(
            "this detector was fitted on passes and has never seen an input, so the shape of its "
            "inputs is not known: fit it on a loader to export it"
        )
    return synthetic_inputs(calm(detector.engine.inputs), n)


def calm(description: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a description in the inner half of their range.

    Noise over all of it is twice as wide as data are, and may drive a network to outputs of
    thousands, of which no runtime gives the same digits.

    Example:
        >>> calm({"kind": "tensor", "dtype": "float32", "shape": [3], "low": -4.0, "high": 4.0})
        {'kind': 'tensor', 'dtype': 'float32', 'shape': [3], 'low': -2.0, 'high': 2.0}
    """
    kind = description["kind"]
    if kind == "dict":
        inside = {name: calm(item) for name, item in description["items"].items()}
        return {**description, "items": inside}
    if kind == "tuple":
        return {**description, "items": [calm(item) for item in description["items"]]}
    if kind != "tensor" or not getattr(torch, description["dtype"]).is_floating_point:
        return description
    low, high = description["low"], description["high"]
    return {**description, "low": (3 * low + high) / 4, "high": (low + 3 * high) / 4}
