"""From scores to decisions: the held-out calibration scores, and a threshold with its promise."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tulip_ood.errors import InputError, ThresholdError
from tulip_ood.numerics import metrics, thresholds
from tulip_ood.numerics.quantiles import quantiles
from tulip_ood.wording import percent

__all__ = ["Calibration", "Threshold", "control_error_rate", "control_false_alarms"]


@dataclass(frozen=True)
class Calibration:
    """Scores of ID inputs that fitting has not seen, sorted, and what belongs to them.

    Attributes:
        scores: [n], rising.
        wrong: Whether the network's answer was wrong, [n]; NaN where that is not known.
        weights: For dense outputs the weight of each position (an input's add up to 1), else None.
        ids: Fingerprints of the inputs, [n], or None.
        cross_fitted: Whether each score comes from a fit on the other folds (few inputs), rather
            than from one half for a fit on the other.

    Example:
        >>> import torch
        >>> c = Calibration.of(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 0.0]))
        >>> c.scores.tolist(), c.wrong.tolist(), c.n_inputs
        ([1.0, 3.0], [0.0, 1.0], 2)
    """

    scores: Tensor
    wrong: Tensor
    weights: Tensor | None = None
    ids: tuple[bytes, ...] | None = None
    cross_fitted: bool = False

    @staticmethod
    def of(
        scores: Tensor,
        wrong: Tensor,
        *,
        ids: tuple[bytes, ...] | None = None,
        cross_fitted: bool = False,
    ) -> "Calibration":
        """Sort scores [n], or [n, positions] of dense outputs. NaN: was not held out, goes."""
        weights = None
        if scores.ndim > 1:
            flat = scores.flatten(1)
            usable = (~flat.isnan()).to(torch.float64)
            weight = usable / usable.sum(dim=1, keepdim=True).clamp_min(1)
            scores, wrong, weights = flat.flatten(), wrong.flatten(), weight.flatten()
            ids = None
        keep = (~scores.isnan()).nonzero().squeeze(1)
        order = keep[scores[keep].to(torch.float64).argsort(stable=True)]
        return Calibration(
            scores[order].to(torch.float64),
            wrong[order].to(torch.float64),
            None if weights is None else weights[order].to(torch.float64),
            None if ids is None else tuple(ids[i] for i in order.tolist()),
            cross_fitted,
        )

    def with_unscorable(self, n: int) -> "Calibration":
        """With n more inputs that have no score: they are refused, and so count as odd."""
        if not n:
            return self
        odd = torch.full((n,), math.inf, dtype=torch.float64)
        ones = torch.ones(n, dtype=torch.float64)
        return replace(
            self,
            scores=torch.cat([self.scores, odd]),
            wrong=torch.cat([self.wrong, torch.full_like(odd, math.nan)]),
            weights=None if self.weights is None else torch.cat([self.weights, ones]),
            ids=None if self.ids is None else (*self.ids, *[bytes(16)] * n),
        )

    @property
    def unscorable(self) -> float:
        """The share of the inputs that have no score."""
        odd = self.scores == math.inf
        mass = odd.sum() if self.weights is None else self.weights[odd].sum()
        return float(mass) / self.n_inputs

    @property
    def n_inputs(self) -> int:
        """The number of calibration inputs (not positions)."""
        return len(self.scores) if self.weights is None else round(float(self.weights.sum()))

    def p_values(self, scores: Tensor) -> Tensor:
        """Conformal p-values; 0 for a score of +inf, which marks an input without a score."""
        p = thresholds.conformal_p_values(self.scores, scores, weights=self.weights)
        return torch.where(scores == math.inf, 0.0, p)

    @property
    def aurc(self) -> float:
        """AURC of the network's own errors on the calibration inputs; NaN without labels."""
        known = ~self.wrong.isnan()
        if not bool(known.any()):
            return math.nan
        return metrics.aurc(self.scores[known], self.wrong[known])

    @property
    def spread(self) -> float:
        """q95 − q5 of the scores: the range in which differences are judged."""
        finite = self.scores[self.scores.isfinite()]
        low, high = quantiles(finite, (0.05, 0.95))
        return high - low


@dataclass(frozen=True)
class Threshold:
    """Inputs with a score up to `value` are accepted.

    Attributes:
        value: The largest score that is accepted.
        kind: "false_alarm" or "max_error".
        target: The rate that was asked for.
        confidence: For "max_error": the probability that the promise is true.
        coverage: The share of the calibration inputs that is accepted.
        promise: What holds, in words.

    Example:
        >>> Threshold(0.7, "false_alarm", 0.05, None, 0.95, "at most 5 %").accepts(
        ...     torch.tensor([0.7, 0.8])
        ... )
        tensor([ True, False])
    """

    value: float
    kind: str
    target: float
    confidence: float | None
    coverage: float
    promise: str

    def accepts(self, scores: Tensor) -> Tensor:
        """Which scores are accepted; +inf and NaN never are."""
        return (scores <= self.value) & (scores < math.inf)


def control_false_alarms(calibration: Calibration, false_alarm: float) -> Threshold:
    """A threshold that refuses at most `false_alarm` of new ID inputs.

    Example:
        >>> import torch
        >>> c = Calibration.of(torch.arange(1.0, 100.0), torch.zeros(99))
        >>> control_false_alarms(c, 0.05).value
        95.0
    """
    value = thresholds.false_alarm_threshold(
        calibration.scores, false_alarm, weights=calibration.weights
    )
    n = calibration.n_inputs
    unit = "inputs"
    band = ""
    if calibration.weights is None:
        low, high = thresholds.false_alarm_band(n, false_alarm)
        band = f"; for this calibration set expect {percent(low)} to {percent(high)} (90 % band)"
    else:
        unit = "positions of new inputs"
    how = ""
    if calibration.cross_fitted:
        how = " Cross-fitted because there are few inputs: the rate holds approximately."
    promise = (
        f"at most {percent(false_alarm)} of in-distribution {unit} are refused, on average over "
        f"calibration sets of {n}{band}.{how}"
    )
    if value == math.inf:
        promise = (
            f"all inputs that can be scored are accepted: {percent(calibration.unscorable)} of "
            f"the {n} calibration inputs cannot, which is more than {percent(false_alarm)}"
        )
    coverage = _coverage(calibration, value)
    return Threshold(value, "false_alarm", false_alarm, None, coverage, promise)


def control_error_rate(calibration: Calibration, max_error: float, confidence: float) -> Threshold:
    """A threshold at which accepted answers are wrong at most `max_error` of the time.

    Example:
        >>> import torch
        >>> c = Calibration.of(torch.linspace(0, 1, 1000), torch.linspace(0, 1, 1000) > 0.9)
        >>> control_error_rate(c, 0.02, 0.95).coverage
        0.9
    """
    if calibration.weights is not None:
        raise InputError(
            "max_error is not available for dense outputs: positions of one input are not "
            "independent, so no error rate can be promised. Use false_alarm"
        )
    known = ~calibration.wrong.isnan()
    if not bool(known.any()):
        raise ThresholdError(
            "max_error needs to know which answers are right: the detector was fitted without "
            "labels, or the task has no right and wrong (regression). Use false_alarm"
        )
    found = thresholds.error_rate_threshold(
        calibration.scores[known],
        calibration.wrong[known] > 0.5,
        max_error=max_error,
        confidence=confidence,
    )
    promise = (
        f"with confidence {confidence:g}, accepted answers on in-distribution inputs are wrong at "
        f"most {percent(max_error, 2)} of the time (seen: {percent(found.error_rate, 2)}), "
        f"accepting {percent(found.coverage)}"
    )
    if calibration.cross_fitted:
        promise += ". Cross-fitted because there are few inputs: it holds approximately"
    return Threshold(found.threshold, "max_error", max_error, confidence, found.coverage, promise)


def _coverage(calibration: Calibration, value: float) -> float:
    accepted = ((calibration.scores <= value) & calibration.scores.isfinite()).to(torch.float64)
    if calibration.weights is None:
        return float(accepted.mean())
    return float((accepted * calibration.weights).sum() / calibration.weights.sum())
