"""What an artefact says of itself, in JSON: which detector it is, and what it promises."""

import importlib.metadata
import math
import platform
from dataclasses import asdict
from typing import Any

import torch

from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.envelope_fit import FittedEnvelope
from tulip_ood.detectors.knn import Bank
from tulip_ood.export.exportable import calm, example_inputs
from tulip_ood.export.judging import OUTPUTS
from tulip_ood.export.passing import Prepare, input_tensors
from tulip_ood.export.plan import Plan
from tulip_ood.export.portable import Portable
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.version import __version__

__all__ = ["FORMAT", "describe", "golden_inputs", "input_names"]

FORMAT = "tulip-artefact-1"
GOLDEN_INPUTS = 16
_MEANS = {
    "probs": "calibrated probabilities (the mean, for regression)",
    "logits": "the network's own outputs",
    "label": "the network's own answer",
    "score": "high = unsure; inf where an input cannot be scored",
    "p_value": "conformal: the share of in-distribution inputs that look at least as odd",
    "accepted": "score <= threshold",
}


def input_names(example: Inputs) -> tuple[str, ...]:
    """What an artefact's inputs are called: "input", or the names that the network gives them.

    Example:
        >>> input_names(torch.zeros(1, 2)), input_names({"ids": torch.ones(1), "a": torch.ones(1)})
        (('input',), ('a', 'ids'))
    """
    return tuple(place or "input" for place, _ in structures.tensors(example))


def golden_inputs(detector: Detector, prepare: Prepare | None, n: int = GOLDEN_INPUTS) -> Inputs:
    """Synthetic inputs; such as pixels can make, if pixels are prepared inside.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> golden_inputs(detector, None).shape
        torch.Size([16, 4])
    """
    found = example_inputs(detector, n)
    return found if prepare is None else prepare(prepare.pixels(found))


def describe(
    detector: Detector, plan: Plan, prepare: Prepare | None, portable: Portable
) -> dict[str, Any]:
    """Everything that goes along with an artefact.

    Args:
        detector: Fitted.
        plan: Its size and cost.
        prepare: What is done to pixels inside, or None.
        portable: Its network.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> plan = Plan("msp", "onnx", 1.0, 1, 0.0, 0.0, 1.0, 1.0)
        >>> about = describe(detector, plan, None, Portable.of(detector))
        >>> about["inputs"], about["threshold"]["kind"]
        ([{'name': 'input', 'dtype': 'float32', 'shape': [4]}], 'false_alarm')
    """
    threshold, calibration = detector.threshold, detector.calibration
    assert threshold is not None  # fitted
    taken = input_tensors(portable.example)
    if prepare is not None:
        taken = (prepare.pixels(taken[0]),)
    golden = detector.score(golden_inputs(detector, prepare))
    return {
        "format": FORMAT,
        "method": detector.name,
        "task": detector.task.name,
        "recipe": detector._facts.get("recipe"),
        "settings": detector._settings().to_dict() | _numbers(detector),
        "threshold": asdict(threshold),
        "calibration": {"n_inputs": calibration.n_inputs, "spread": calibration.spread},
        **detector.engine.fingerprint,
        **detector.provenance,
        "prepares_pixels": prepare is not None,
        "inputs": [
            {
                "name": name,
                "dtype": str(t.dtype).removeprefix("torch."),
                "shape": list(t.shape[1:]),
            }
            for name, t in zip(input_names(portable.example), taken, strict=True)
        ],
        "outputs": {name: _MEANS[name] for name in OUTPUTS},
        "golden": {
            "inputs": calm(detector.engine.inputs or {}),
            "scores": [float(s) for s in golden],
        },
        "precision": f"{str(portable.network.dtype).removeprefix('torch.')} passes, float64 after",
        "plan": plan.to_dict(),
        "versions": _versions(),
    }


def _numbers(detector: Detector) -> dict[str, Any]:
    """The method's own numbers; those of a sum's parts by name."""
    state = detector._state
    if isinstance(state, FittedEnvelope):
        return {
            "score": getattr(detector, "score_name", None),
            "trace_xx": state.trace_xx,
            "lam": state.lam,
            "j_score": state.j_score,
            "j_probs": state.j_probs,
            "shaping": None if state.shaping is None else asdict(state.shaping),
        }
    if isinstance(state, Bank):
        return {"neighbour": state.neighbour(detector.parameters["k"]), "of": len(state.rows)}
    if isinstance(detector, Depth):
        return {"stages": [stage.name for stage in detector.stages]}
    if isinstance(detector, Sum):
        return {**_of_auto(detector), "parts": _parts(detector)}
    return detector.parameters


def _parts(detector: Sum) -> dict[str, Any]:
    state, names = detector._state, detector._part_names
    scales = zip(names, detector.parts, state.centres, state.spreads, strict=True)
    return {n: {**_numbers(part), "centre": c, "spread": s} for n, part, c, s in scales}


def _of_auto(detector: Sum) -> dict[str, Any]:
    if not isinstance(detector, Auto):
        return {}
    # JSON knows no infinity: null is a bar that nothing exceeds.
    bars = {name: bar if math.isfinite(bar) else None for name, bar in detector._bars.items()}
    return {
        "strength": detector.strength,
        "heard": list(detector._heard),
        "weights": dict(detector._weights),
        "bars": bars,
        "mirrored": detector._mirrors,
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"tulip_ood": __version__, "torch": str(torch.__version__)}
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {**found, "python": platform.python_version()}
