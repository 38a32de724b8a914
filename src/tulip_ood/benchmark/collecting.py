"""Scores of one method, collected batch by batch, and every number that follows from them."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tulip_ood.benchmark.results import MethodResult, SetResult
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.decision import Threshold
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics
from tulip_ood.numerics.tasks import Classification

__all__ = ["Collector", "columns_of", "flat", "summarise"]


class Collector:
    """What one fitted detector says of ID test inputs and of OOD inputs.

    Args:
        name: The name to show.
        detector: Fitted.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> collector = Collector("msp", detector)
        >>> collector.inside(detector.predict(x), y)
        >>> collector.outside("wide", detector.score(9 * x))
        >>> 0 <= collector.result().sets["wide"].auroc <= 1
        True
    """

    def __init__(self, name: str, detector: Detector) -> None:
        self.name, self.detector = name, detector
        self._inside: dict[str, list[Tensor]] = {}
        self._outside: dict[str, list[Tensor]] = {}

    def inside(self, prediction: Prediction, labels: Tensor) -> None:
        """Take in predictions of ID test inputs, with their labels."""
        for key, value in columns_of(self.detector, prediction, labels).items():
            self._inside.setdefault(key, []).append(value)

    def outside(self, name: str, scores: Tensor) -> None:
        """Take in scores of inputs of one OOD set."""
        self._outside.setdefault(name, []).append(flat(scores))

    def result(self) -> MethodResult:
        """Every number."""
        assert self.detector.threshold is not None
        if not self._inside:
            raise InputError("there are no ID test inputs")
        inside = {key: torch.cat(parts) for key, parts in self._inside.items()}
        outside = {name: torch.cat(parts) for name, parts in self._outside.items()}
        return summarise(self.name, inside, outside, self.detector.threshold)


def columns_of(detector: Detector, prediction: Prediction, labels: Tensor) -> dict[str, Tensor]:
    """What is kept of predictions of ID inputs: score, wrong, confidence, log_p; flat, float64.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> sorted(columns_of(detector, detector.predict(x), y))
        ['confidence', 'log_p', 'score', 'wrong']
    """
    labels = labels.cpu()
    confidence, log_p = _stated(detector, prediction, labels)
    return {
        "score": flat(prediction.score),
        "wrong": _wrong(detector, prediction, labels),
        "confidence": confidence,
        "log_p": log_p,
    }


def summarise(
    name: str, inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], threshold: Threshold
) -> MethodResult:
    """Every number that follows from the scores.

    Args:
        name: The name to show.
        inside: What `columns_of` gives, of all ID test inputs.
        outside: The scores of each OOD set.
        threshold: The detector's own.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> d = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> inside = columns_of(d, d.predict(x), y)
        >>> summarise("msp", inside, {"same": d.score(x)}, d.threshold).sets["same"].auroc
        0.5
    """
    scores, wrong, confidence = inside["score"], inside["wrong"], inside["confidence"]
    known, said = ~wrong.isnan(), ~(wrong.isnan() | confidence.isnan())
    accepted = threshold.accepts(scores)
    any_known, any_said = bool(known.any()), bool(said.any())
    return MethodResult(
        name=name,
        id_scores=scores,
        wrong=wrong,
        confidence=confidence,
        sets={each: _against(scores, own, threshold.accepts) for each, own in outside.items()},
        accuracy=1.0 - float(wrong[known].mean()),
        aurc=metrics.aurc(scores[known], wrong[known]) if any_known else math.nan,
        augrc=metrics.augrc(scores[known], wrong[known]) if any_known else math.nan,
        ece=metrics.ece(confidence[said], 1.0 - wrong[said]) if any_said else math.nan,
        nll=-float(inside["log_p"].nanmean()),
        threshold=threshold.value,
        coverage=_share(accepted),
        false_alarms=1.0 - _share(accepted),
        accepted_error=float(wrong[accepted & known].mean()),
    )


def flat(scores: Tensor) -> Tensor:
    """One score a position, float64 on the CPU; an input without one is as unsure as can be.

    Example:
        >>> flat(torch.tensor([[1.0, math.nan]]))
        tensor([1., inf], dtype=torch.float64)
    """
    row = scores.detach().reshape(-1).to("cpu", torch.float64)
    return torch.where(row.isnan(), math.inf, row)


def _against(inside: Tensor, outside: Tensor, accepts: Callable[[Tensor], Tensor]) -> SetResult:
    return SetResult(
        scores=outside,
        auroc=metrics.auroc(inside, outside),
        id_flagged_at_95_ood=metrics.id_flagged_at_95_ood(inside, outside),
        ood_missed_at_95_id=metrics.ood_missed_at_95_id(inside, outside),
        refused=1.0 - _share(accepts(outside)),
    )


def _share(flags: Tensor) -> float:
    return float(flags.to(torch.float64).mean())


def _wrong(detector: Detector, prediction: Prediction, labels: Tensor) -> Tensor:
    """1 where the answer is wrong, NaN where the task or the data does not say, flat."""
    if not detector.task.has_errors:
        return torch.full((prediction.score.numel(),), math.nan, dtype=torch.float64)
    answer = prediction.label.cpu()
    truth = labels.reshape(answer.shape)
    wrong = answer != truth
    if wrong.ndim > prediction.score.ndim:  # several answers an input: all must be right
        return wrong.any(dim=-1).reshape(-1).to(torch.float64)
    return torch.where(truth < 0, math.nan, wrong.to(torch.float64)).reshape(-1)


def _stated(detector: Detector, prediction: Prediction, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the answer and log p of the truth; NaN unless one class is true."""
    n = prediction.score.numel()
    nothing = torch.full((n,), math.nan, dtype=torch.float64)
    if not isinstance(detector.task, Classification):
        return nothing, nothing
    probs = prediction.probs.cpu().to(torch.float64).reshape(n, -1)
    answer, truth = prediction.label.cpu().reshape(n, 1), labels.reshape(n)
    confidence = probs.gather(1, answer).squeeze(1)
    log_p = probs.gather(1, truth.clamp_min(0).unsqueeze(1)).squeeze(1).log()
    usable = (truth >= 0) & ~probs.isnan().any(dim=1)
    return confidence, torch.where(usable, log_p, math.nan)
