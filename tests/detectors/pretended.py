"""Scores of passes that lie on an accelerator that is only pretended to be there.

Tensors without numbers (PyTorch's fake tensors) know their device, and refuse to be mixed with
those of another: what would fail on a GPU fails here. Pretending changes a whole process, so this
is a program of its own; it prints where every detector's scores lie.
"""

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from tulip_ood import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import METHODS, make

DEVICE = "pretended"
FAKE = FakeTensorMode(allow_non_fake_inputs=True)
PASSES = (
    "base",
    "noisy",
    "drift",
    "features",
    "noisy_features",
    "drift_features",
    "extras",
    "heads",
)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A structure with all of its tensors changed."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        parts = [mapped(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: mapped(part, function) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        own = [one.name for one in fields(value) if one.init]
        return replace(value, **{name: mapped(getattr(value, name), function) for name in own})
    return value


def moved(tensor: Tensor) -> Tensor:
    with FAKE:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)


def where(detector: Detector, data: tuple[Tensor, Tensor]) -> str:
    """The device of its scores, given passes on the accelerator and a state on the CPU."""
    needs = detector._needs()
    rows = detector.engine.collect([data], needs, seed=0, memory=1 << 30)
    passes = detector.engine.passes_of(rows, needs, seed=0)
    there = {name: mapped(getattr(passes, name), moved) for name in PASSES}
    state = mapped(detector.fitted, FAKE.from_tensor)
    with FAKE:
        score = detector._score(state, replace(passes, labels=None, **there))
    assert score.dtype == torch.float64
    return score.device.type


def main() -> None:
    backend_registration._setup_privateuseone_for_python_backend(DEVICE)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    x = torch.randn(200, 3, 12, 12)
    x = x + x.flip(-1)  # so that mirror images are looked at
    data = x, (30 * model(x) + torch.randn(200, 4)).argmax(1)
    found = {}
    for name in [*METHODS, "tulip+scale", "tulip&knn"]:
        if name in ("ensemble", "mcd"):  # they need other networks
            continue
        detector = make(name, model)
        if not detector._scores_on_device():
            continue
        recipe = {"recipe": "balanced"} if name.startswith("tulip") and "&" not in name else {}
        detector = copy.copy(detector.fit([data], **recipe))
        if isinstance(detector, Auto):  # all are heard, whatever they are worth
            detector._weights = dict.fromkeys(detector._weights, 1.0)
            detector._bars = dict.fromkeys(("features", *detector._weights), 1.0)
            assert len(detector._heard) == 7
            assert detector._mirrors
        found[name] = where(detector, (x[:20], data[1][:20]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
