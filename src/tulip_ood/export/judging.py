"""All that follows the passes, as a module that can be exported: from records to decisions."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.export.scoring import graph_probs, graph_score
from tulip_ood.network.features import Head
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Output
from tulip_ood.network.passes import Passes

__all__ = ["OUTPUTS", "Judge", "Pass"]

OUTPUTS = ("probs", "logits", "label", "score", "p_value", "accepted")


class Pass(NamedTuple):
    """What one pass leaves in the graph.

    Attributes:
        logits: [N, o].
        features: Penultimate features [N, d], or None where nobody reads them.
        head: The last layer in this pass, or None where nobody reads features.
        inner: Statistics of the inner stages [N, …], or None where nobody reads them.

    Example:
        >>> Pass(torch.zeros(2, 3), None, None).logits.shape
        torch.Size([2, 3])
    """

    logits: Tensor
    features: Tensor | None
    head: Head | None
    inner: Tensor | None = None


class Judge(nn.Module):
    """From the passes over some inputs to the answer of a fitted detector.

    Args:
        detector: Fitted.
        drifts: Whether the last of the passes is the drift pass.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> model = torch.nn.Linear(4, 3)
        >>> detector = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> probs, *_, accepted = Judge(detector)((x,), (Pass(model(x), None, None),))
        >>> probs.shape, accepted.dtype
        (torch.Size([200, 3]), torch.bool)
    """

    calibration: Tensor

    def __init__(self, detector: Detector, *, drifts: bool = False) -> None:
        super().__init__()
        threshold = detector.threshold
        assert threshold is not None  # fitted
        self._detector = detector
        self._state: Any = detector.fitted
        self._measures = detector.needs.measures
        self._drifts = drifts
        self._threshold = threshold.value
        self.register_buffer("calibration", detector.calibration.scores.clone())

    def forward(
        self,
        inputs: tuple[Tensor, ...],
        passes: tuple[Pass, ...],
        mirrored: tuple[Pass, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Probabilities, logits, label, score, p-value, accepted.

        Args:
            inputs: As the network takes them.
            passes: Base, noisy and drift pass.
            mirrored: The base pass of the mirror images, where they are looked at.
        """
        detector, state = self._detector, self._state
        record = self._record(passes, self._extras(passes[0], mirrored))
        probs, score = graph_probs(detector, state, record), graph_score(detector, state, record)
        measured = (*(one.logits for one in passes), *record.extras.values())
        valid = _finite(inputs) & _finite(measured)
        score = torch.where(valid & ~score.isnan(), score, math.inf)
        p_value = self._p_value(score)
        accepted = (score <= self._threshold) & (score < math.inf)
        narrow = probs.to(torch.float32), record.base.to(torch.float32)
        return *narrow, detector.task.label(record.base), score, p_value, accepted

    def _extras(self, base: Pass, mirrored: tuple[Pass, ...]) -> dict[str, Tensor]:
        """What the detector measures beside the passes, by key."""
        found = {}
        for measure in self._measures:
            if isinstance(measure, Mirrored):
                (other,) = mirrored
                found[measure.key] = measure.of(Output(other.logits, other.features, other.head))
            else:
                assert base.inner is not None  # there are no other measures: `check_exportable`
                found[measure.key] = base.inner
        return found

    def _record(self, passes: tuple[Pass, ...], extras: dict[str, Tensor]) -> Passes:
        noisy = passes[1 : len(passes) - self._drifts]
        drift = passes[-1] if self._drifts else None
        base = passes[0].logits
        heads = tuple(one.head for one in passes if one.head is not None)
        features = [one.features for one in noisy if one.features is not None]
        return Passes(
            base=base,
            noisy=torch.stack([one.logits for one in noisy]) if noisy else base[None][:0],
            drift=None if drift is None else drift.logits,
            features=passes[0].features,
            labels=None,
            settings=self._detector._settings(),
            noisy_features=torch.stack(features) if features else None,
            drift_features=None if drift is None else drift.features,
            heads=heads,
            extras=extras,
        )

    def _p_value(self, score: Tensor) -> Tensor:
        """Conformal, by counting: runtimes know no binary search."""
        at_least = (self.calibration >= score.unsqueeze(-1)).to(torch.float64).sum(dim=-1)
        p_value = (1.0 + at_least) / (len(self.calibration) + 1.0)
        return torch.where(score == math.inf, 0.0, p_value)


def _finite(tensors: tuple[Tensor, ...]) -> Tensor:
    """Which rows are finite in all of them, [N]."""
    flat = [t.flatten(1).isfinite().all(dim=1) for t in tensors if t.is_floating_point()]
    if not flat:
        return torch.ones_like(tensors[0].flatten(1)[:, 0], dtype=torch.bool)
    good = flat[0]
    for one in flat[1:]:
        good = good & one
    return good
