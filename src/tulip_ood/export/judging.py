"""All that follows the logits, as a module that can be exported: Alg. 1 from line 6 on, in float64.

The same functions as in the detector; only what cuts many inputs into blocks is left out, because a
graph has no place for a loop over its own batch.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.envelope_fit import Constants, FittedEnvelope
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.network.features import Head
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import envelope

__all__ = ["OUTPUTS", "Judge", "Pass"]

OUTPUTS = ("probs", "logits", "label", "score", "p_value", "accepted")


class Pass(NamedTuple):
    """What one pass leaves in the graph.

    Attributes:
        logits: [N, o].
        features: Penultimate features [N, d], or None where nothing is shaped.
        head: The last layer in this pass, or None where nothing is shaped.

    Example:
        >>> Pass(torch.zeros(2, 3), None, None).logits.shape
        torch.Size([2, 3])
    """

    logits: Tensor
    features: Tensor | None
    head: Head | None


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
        self._drifts = drifts
        self._threshold = threshold.value
        self.register_buffer("calibration", detector.calibration.scores.clone())

    @property
    def shapes(self) -> bool:
        """Whether penultimate features are needed."""
        return self._state.shaping is not None if hasattr(self._state, "shaping") else False

    def forward(self, inputs: tuple[Tensor, ...], passes: tuple[Pass, ...]) -> tuple[Tensor, ...]:
        """Probabilities, logits, label, score, p-value, accepted."""
        base = passes[0].logits
        probs, score = self._judge(self._record(passes))
        valid = _finite(inputs) & _finite(tuple(one.logits for one in passes))
        score = torch.where(valid & ~score.isnan(), score, math.inf)
        p_value = self._p_value(score)
        accepted = (score <= self._threshold) & (score < math.inf)
        label = self._detector.task.label(base)
        narrow = probs.to(torch.float32), base.to(torch.float32)
        return *narrow, label, score, p_value, accepted

    def _record(self, passes: tuple[Pass, ...]) -> Passes:
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
        )

    def _judge(self, passes: Passes) -> tuple[Tensor, Tensor]:
        """Probabilities and score."""
        detector, state = self._detector, self._state
        if isinstance(detector, Tulip):
            return self._probs(detector, state, passes), self._tulip(detector, state, passes)
        if isinstance(detector, NoiseAveraging):
            stretch = torch.full((), detector.gamma, dtype=torch.float64)
            samples = envelope.samples(passes.base, passes.noisy, stretch)
            score = detector.task.score(detector.score_name, samples)
            return detector._probs(state, passes), score
        return detector._probs(state, passes), detector._score(state, passes)

    def _probs(self, detector: Tulip, state: FittedEnvelope, passes: Passes) -> Tensor:
        return detector.task.predict(self._samples(detector, state.plain, state.j_probs, passes))

    def _tulip(self, detector: Tulip, state: FittedEnvelope, passes: Passes) -> Tensor:
        passes, constants = state.shaped(passes), state.scoring
        if detector.score_name == "bound":
            return self._bound(detector, constants, passes)[0]
        samples = self._samples(detector, constants, state.j_score, passes)
        return detector.task.score(detector.score_name, samples, constants.noise_var)

    def _samples(self, detector: Tulip, constants: Constants, j: float, passes: Passes) -> Tensor:
        """f̃_i, lines 9 to 12; the base pass alone where J is 0."""
        if j == 0.0:
            return passes.base.to(torch.float64).unsqueeze(0)
        bound, trace = self._bound(detector, constants, passes)
        stretch = j * envelope.stretch(bound, trace)
        return envelope.samples(passes.base, passes.noisy, stretch)

    def _bound(
        self, detector: Tulip, constants: Constants, passes: Passes
    ) -> tuple[Tensor, Tensor]:
        """S/J² and Θ, lines 6 to 8."""
        trace = envelope.trace(passes.base, passes.noisy)
        drift = envelope.drift(passes.base, passes.drift, sqrt_outputs=detector._uses_sqrt)
        return (
            envelope.bound(trace, drift, trace_xx=constants.trace_xx, lam=constants.lam),
            trace,
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
