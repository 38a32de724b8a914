"""`tulip calibrate --like OLD`: the same recipe for a changed model, and what has changed."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tulip_ood.cli.failing import UsageError
from tulip_ood.wording import percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.detectors.base import Detector
    from tulip_ood.detectors.decision import Calibration, Threshold

__all__ = ["Comparison", "OldDetector", "compare"]


@dataclass(frozen=True)
class OldDetector:
    """A detector file without its model: how it was made, and its held-out scores.

    Attributes:
        path: Where it is.
        header: Its JSON header.
        calibration: Scores of inputs that fitting had not seen.
        threshold: What it accepts, or None.
        tensors: The constructor's tensors.

    Example:
        >>> import tempfile, torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     detector.save(f"{folder}/d.safetensors")
        ...     OldDetector.read(f"{folder}/d.safetensors").calibration.n_inputs
        200
    """

    path: str
    header: dict[str, Any]
    calibration: "Calibration"
    threshold: "Threshold | None"
    tensors: "dict[str, Tensor]"

    @staticmethod
    def read(path: str) -> "OldDetector":
        """From a file."""
        from tulip_ood.detectors.saving import read

        saved = read(path)
        return OldDetector(
            path, saved.header, saved.calibration, saved.threshold, saved.below("config.")
        )

    @property
    def method(self) -> str:
        """Its method's name."""
        return str(self.header["method"])

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the network's outputs, where they are known."""
        names = self.header["classes"]
        return None if names is None else tuple(names)

    @property
    def preprocess(self) -> "Preprocess | None":
        """How images were prepared."""
        from tulip_ood.data.preprocess import Preprocess

        stored = self.header["preprocess"]
        return None if stored is None else Preprocess.from_json(stored)

    @property
    def recipe(self) -> str | None:
        """The recipe that it was fitted by, where its method has recipes."""
        found: str | None = self.header["config"].get("recipe")
        return found

    @property
    def target(self) -> dict[str, float]:
        """What `set_threshold` was asked for."""
        if self.threshold is None:
            return {}
        asked = {self.threshold.kind: self.threshold.target}
        if self.threshold.confidence is not None:
            asked["confidence"] = self.threshold.confidence
        return asked

    def again(self, model: "nn.Module", given: dict[str, Any], **where: Any) -> "Detector":
        """A detector with the same settings for another model, not fitted yet.

        Args:
            model: The changed network.
            given: Settings that the user has set anew.
            **where: `device` and `batch_size`.
        """
        from tulip_ood.detectors.registry import class_of
        from tulip_ood.network.files import reading

        config = self.header["config"]
        if config.get("output"):
            raise UsageError(
                f"{self.path} was fitted with output=…, a function that no file holds: fit from "
                f"Python"
            )
        with reading(self.path, "a detector with settings for this model"):
            # What was said of single parameters belongs to the old scope.
            tensors = {} if "scope" in given else self.tensors
            return class_of(self.method).from_configuration(
                model, _in_words(config, given) | given, tensors, **where
            )


def _in_words(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Settings as the user gave them: scope and Γ in words fit a changed network too."""
    known = dict(config)
    known |= known.pop("as_given", None) or {}
    if "scope" in given and "layer_scale" in known:
        known |= {"layer_scale": None, "initial_mean": {}}
    if inner := known.get("inner"):  # the parts of a sum, which are told what it is told
        known["inner"] = {
            name: _in_words(part, given) | {key: given[key] for key in given if key in part}
            for name, part in inner.items()
        }
    return known


@dataclass(frozen=True)
class Comparison:
    """An old detector beside a new one; every number is about held-out calibration inputs.

    Attributes:
        threshold: (old, new).
        false_alarms: The share refused at the *old* threshold, (old, new).
        coverage: The share accepted, each at its own threshold, (old, new).
        aurc: (old, new).
        shared: How many calibration inputs both have.
        flipped: Of those, the share whose decision is another one now; None without any.

    Example:
        >>> Comparison((1.0, 1.1), (0.05, 0.07), (0.95, 0.95), (0.01, 0.02), 0, None).lines()[-1]
        ('decisions that flip', '', 'no calibration inputs are shared')
    """

    threshold: tuple[float, float]
    false_alarms: tuple[float, float]
    coverage: tuple[float, float]
    aurc: tuple[float, float]
    shared: int
    flipped: float | None

    def lines(self) -> list[tuple[str, str, str]]:
        """What, old, new: for a table."""
        flips = "no calibration inputs are shared"
        if self.flipped is not None:
            flips = f"{percent(self.flipped)} of {self.shared:,} shared inputs"
        pairs: dict[str, tuple[Callable[[float], str], tuple[float, float]]] = {
            "threshold": ("{:.6g}".format, self.threshold),
            "false alarms at the old threshold": (percent, self.false_alarms),
            "coverage": (percent, self.coverage),
            "AURC": ("{:.5f}".format, self.aurc),
        }
        shown = [(name, form(a), form(b)) for name, (form, (a, b)) in pairs.items()]
        return [*shown, ("decisions that flip", "", flips)]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def compare(
    old: "tuple[Calibration, Threshold]", new: "tuple[Calibration, Threshold]"
) -> Comparison:
    """Put two detectors' held-out scores and thresholds side by side.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.decision import Calibration, control_false_alarms
        >>> scores, right = torch.arange(40.0), torch.zeros(40)
        >>> both = Calibration.of(scores, right, ids=tuple(bytes([i]) * 16 for i in range(40)))
        >>> threshold = control_false_alarms(both, 0.1)
        >>> compare((both, threshold), (both, threshold)).flipped
        0.0
    """
    (before, was), (after, now) = old, new
    shared, flips = 0, 0
    if before.ids is not None and after.ids is not None:
        accepted = dict(zip(before.ids, was.accepts(before.scores).tolist(), strict=True))
        for key, accepts in zip(after.ids, now.accepts(after.scores).tolist(), strict=True):
            if key in accepted:
                shared += 1
                flips += accepted[key] != accepts
    return Comparison(
        (was.value, now.value),
        (1.0 - _share(before, was), 1.0 - _share(after, was)),
        (_share(before, was), _share(after, now)),
        (before.aurc, after.aurc),
        shared,
        flips / shared if shared else None,
    )


def _share(calibration: "Calibration", threshold: "Threshold") -> float:
    accepted = threshold.accepts(calibration.scores).double()
    if calibration.weights is None:
        return float(accepted.mean())
    return float((accepted * calibration.weights).sum() / calibration.weights.sum())
