"""Detector files: safetensors with a JSON header, never pickle.

The model is not in the file, its fingerprint is. `load` refuses another model, a damaged or newer
file, and a detector that no longer scores sixteen golden inputs as it did when it was saved.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.decision import Calibration, Threshold
from tulip_ood.detectors.findings import Finding
from tulip_ood.detectors.header import FORMAT, GOLDEN_INPUTS, parse_header
from tulip_ood.detectors.own import check_own, find_own
from tulip_ood.detectors.prediction import Reference
from tulip_ood.detectors.same_model import check_model
from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network.files import reading, save_tensors
from tulip_ood.network.looks import absent, looks_like
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.version import __version__

__all__ = ["FORMAT", "Saved", "load", "read", "read_header", "save"]

GOLDEN_TOLERANCE = 1e-4
_EXPECTED = "Expected what detector.save or `tulip calibrate` has written"


def save(detector: Detector, path: str | os.PathLike[str]) -> None:
    """Write a fitted detector; the file appears whole or not at all.

    Example:
        >>> import tempfile, torch, tulip_ood
        >>> model = torch.nn.Linear(4, 3)
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     detector.save(f"{folder}/detector.safetensors")
        ...     again = tulip_ood.load(f"{folder}/detector.safetensors", model)
        >>> torch.equal(again.score(x), detector.score(x))
        True
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"save was given {type(path).__name__}; expected the path of the file to write, as in "
            f'detector.save("detector.safetensors")'
        )
    detector = detector._view()
    detector._ready()
    config, config_tensors = detector.configuration()
    check_own(detector, config)
    fitted, fitted_tensors = detector.fitted_state()
    calibration, threshold = detector.calibration, detector.threshold
    tensors = {
        **{f"config.{name}": value for name, value in config_tensors.items()},
        **{f"fitted.{name}": value for name, value in fitted_tensors.items()},
        "calibration.scores": calibration.scores,
        "calibration.wrong": calibration.wrong,
    }
    if calibration.weights is not None:
        tensors["calibration.weights"] = calibration.weights
    if calibration.ids is not None:
        joined = bytearray(b"".join(calibration.ids))
        tensors["calibration.ids"] = torch.frombuffer(joined, dtype=torch.uint8).reshape(-1, 16)
    if detector._entropy_reference is not None:
        tensors["entropy.quantiles"] = detector._entropy_reference.quantiles
    header: dict[str, Any] = {
        "format": FORMAT,
        "method": detector.name,
        "config": config,
        "fitted": fitted,
        "facts": detector._facts,
        "findings": [asdict(finding) for finding in detector._findings],
        "threshold": None if threshold is None else asdict(threshold),
        "cross_fitted": calibration.cross_fitted,
        "recipe": detector._facts.get("recipe"),
        **detector.engine.fingerprint,
        "weights_dtypes": detector.network.kinds,
        **detector.provenance,
        "noise_checksum": detector.engine.noise_checksum(detector.needs.settings),
        "inputs": detector.engine.inputs,
        "golden": _golden_scores(detector),
        "precision": detector.network.precision,
        "versions": {
            "tulip_ood": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}  # none shared
    header["content_sha256"] = _content(header, tensors)
    text = json.dumps(header, default=_plain)
    parse_header(text, path)  # nothing is written that could not be read again
    save_tensors(path, tensors, {"tulip": text})


def _plain(value: Any) -> Any:
    """A number of NumPy's or PyTorch's, as Python's own."""
    if isinstance(value, np.generic | Tensor) and value.ndim == 0:
        return value.item()
    raise InputError(f"a file cannot hold a {type(value).__name__} among its settings: {value!r}")


def _content(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A hash of everything in a file, against damage (not against someone who wants to deceive)."""
    known = {key: value for key, value in header.items() if key != "content_sha256"}
    state = hashlib.sha256(json.dumps(known, sort_keys=True, default=_plain).encode())
    for name in sorted(tensors):
        state.update(f"{name}:{tuple(tensors[name].shape)}:{tensors[name].dtype}".encode())
        state.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _golden_scores(detector: Detector) -> list[float] | None:
    """Scores of synthetic inputs; None where the detector was fitted on passes alone."""
    golden = detector.engine.golden_inputs(GOLDEN_INPUTS)
    if golden is None:
        return None
    scores = detector.score(golden)
    return [float(s) for s in scores.reshape(GOLDEN_INPUTS, -1).mean(dim=1)]


@dataclass(frozen=True)
class Saved:
    """A detector file without its model: how the detector was made, and its held-out scores.

    Attributes:
        path: Where it is.
        header: Its JSON header.
        tensors: Everything else.

    Example:
        >>> Saved("d.safetensors", {"threshold": None}, {}).threshold is None
        True
    """

    path: str
    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def below(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without that beginning."""
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}

    @property
    def calibration(self) -> Calibration:
        """The scores of inputs that fitting had not seen."""
        held = self.below("calibration.")
        scores, ids = held.get("scores"), held.pop("ids", None)
        if (
            scores is None
            or not {"wrong"} <= held.keys() - {"scores"} <= {"wrong", "weights"}
            or any(t.shape != (len(scores),) or t.dtype != torch.float64 for t in held.values())
            or not bool(scores.isfinite().any() and (scores[1:] >= scores[:-1]).all())
            or (ids is not None and (ids.dtype != torch.uint8 or ids.shape != (len(scores), 16)))
        ):
            raise FileFormatError(f"{self.path} is damaged: its calibration scores are not whole")
        return Calibration(
            scores,
            held["wrong"],
            held.get("weights"),
            None if ids is None else tuple(row.tobytes() for row in ids.numpy()),
            self.header["cross_fitted"],
        )

    @property
    def threshold(self) -> Threshold | None:
        """What was accepted."""
        stored = self.header["threshold"]
        return None if stored is None else Threshold(**stored)


def read(path: str | os.PathLike[str]) -> Saved:
    """A detector file, after checking that it is whole and unaltered.

    Example:
        >>> import tempfile, torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     detector.save(f"{folder}/d.safetensors")
        ...     read(f"{folder}/d.safetensors").calibration.n_inputs
        200
    """
    header, tensors = _read(path, tensors=True)
    if header.get("content_sha256") != _content(header, tensors):
        raise FileFormatError(
            f"{path} was altered after it was written: its content does not match its checksum"
        )
    return Saved(str(path), header, tensors)


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a detector file, without loading anything else.

    Example:
        >>> import tempfile, torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     detector.save(f"{folder}/d.safetensors")
        ...     read_header(f"{folder}/d.safetensors")["method"]
        'msp'
    """
    return _read(path, tensors=False)[0]


def _read(
    path: str | os.PathLike[str], *, tensors: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileFormatError(absent(path, "detector file"))
    try:
        with safe_open(path, framework="pt") as file:
            raw = (file.metadata() or {}).get("tulip")
            found = {n: file.get_tensor(n) for n in file.keys()} if tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        seen = looks_like(path)
        raise FileFormatError(
            f"{path} is damaged or no detector file: {error if seen is None else f'it is {seen}'}. "
            f"{_EXPECTED}"
        ) from error
    if raw is None:
        raise FileFormatError(
            f"{path} is a safetensors file, but not of a detector (of a network?). {_EXPECTED}"
        )
    return parse_header(raw, path), found


@on_the_cpu()
def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    output: Callable[[Any], Tensor] | None = None,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
) -> Detector:
    """A saved detector, for the model that it was fitted on.

    Args:
        path: What `detector.save` wrote.
        model: The same network with the same weights.
        output: As when it was fitted, if it was given then: a function is not stored in the file.
        device: Where passes run; by default where the model's parameters are.
        batch_size: Inputs in one forward pass.

    Raises:
        FileFormatError: If the file is damaged or newer than this library, if the model is
            another one, or if golden inputs do not score as they did.

    Example:
        >>> load("nowhere.safetensors", torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: there is no detector file nowhere.safetensors
    """
    _check_arguments(path, model)
    saved = read(path)
    header = saved.header
    kind = _class_of(header, path)
    if header["config"].get("output") and output is None:
        raise InputError(
            "this detector was fitted with output=…, which a file cannot hold: pass it to load"
        )
    with reading(path, "a detector for this model"):
        detector = kind.from_configuration(
            model,
            header["config"],
            saved.below("config."),
            output=output,
            device=device,
            batch_size=batch_size,
        )
        check_model(detector, header, path)
        _restore(detector, saved)
        _check_golden(detector, header, path)
        _ask_everything(detector)
    return detector


def _check_arguments(path: Any, model: Any) -> None:
    """A path and a network; both orders are easily thought of."""
    call = 'load("detector.safetensors", model)'
    if isinstance(path, nn.Module):
        swapped = " and the path second" if isinstance(model, str | os.PathLike) else ""
        raise InputError(
            f"load was given a network ({type(path).__name__}) first{swapped}; expected the path "
            f"of the detector file, then the network: {call}"
        )
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"load was given {type(path).__name__} as the path of a detector file; expected text "
            f"or a pathlib.Path, then the network: {call}"
        )


def _class_of(header: dict[str, Any], path: str | os.PathLike[str]) -> type[Detector]:
    from tulip_ood.detectors.registry import class_of  # every detector: not before it is needed

    name = header["method"]
    find_own(name)  # says so itself if there are two
    try:
        return class_of(name)
    except InputError:
        raise FileFormatError(
            f"{path} holds the method {name!r}, which tulip-ood {__version__} does not have (saved "
            f"with {header['versions'].get('tulip_ood')}): upgrade it; if the method is a class of "
            f"your own, import the module that defines it before load"
        ) from None


def _restore(detector: Detector, saved: Saved) -> None:
    header = saved.header
    detector.name = header["method"]  # type: ignore[misc]
    detector.engine.take_model()
    detector.restore_state(header["fitted"], saved.below("fitted."))
    detector.engine.inputs = header["inputs"]
    detector._facts = header["facts"]
    detector._findings = [Finding(**finding) for finding in header["findings"]]
    detector.provenance = {key: header.get(key) for key in detector.provenance}
    detector._calibration = saved.calibration
    detector._threshold = saved.threshold
    if "entropy.quantiles" in saved.tensors:
        detector._entropy_reference = Reference(saved.tensors["entropy.quantiles"])


def _ask_everything(detector: Detector) -> None:
    """What scoring does not need is used once now: it must not fail later, in production."""
    str(detector.report())
    golden = detector.engine.golden_inputs(1)
    if golden is not None:
        list(map(str, detector.predict(golden).reason))


def _check_golden(detector: Detector, header: dict[str, Any], path: str | os.PathLike[str]) -> None:
    if header["golden"] is None:
        return
    if detector.engine.noise_checksum(detector.needs.settings) != header["noise_checksum"]:
        raise FileFormatError(
            f"{path} was made with other noise than this release draws (saved by tulip-ood "
            f"{header['versions']['tulip_ood']}): fit again"
        )
    scores = _golden_scores(detector)
    assert scores is not None
    spread = max(detector.calibration.spread, 1e-12)
    then = torch.tensor(header["golden"], dtype=torch.float64)
    worst = float((torch.tensor(scores, dtype=torch.float64) - then).abs().nan_to_num(0.0).max())
    tolerance = GOLDEN_TOLERANCE if detector.network.device.type == "cpu" else 1e-2
    if worst > tolerance * spread:
        raise FileFormatError(
            f"{path} does not score its golden inputs as it did: off by {worst / spread:.2g} of "
            f"the score range, allowed is {tolerance:g}. Model and noise are the same, so the "
            f"arithmetic differs: saved with torch {header['versions']['torch']} in "
            f"{header['precision']}, loaded with torch {torch.__version__} in "
            f"{detector.network.precision} on {detector.network.device}, or the file was altered. "
            f"Fit again"
        )
