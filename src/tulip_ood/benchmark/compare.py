"""Several fitted detectors on the same inputs: every score, and every number that follows.

A detector that answers "can this be trusted?" is judged twice: does it tell OOD inputs from ID
ones, and does it rank the network's own errors? Both stand side by side here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.errors import InputError
from tulip_ood.network.inputs import Inputs, count_rows
from tulip_ood.numerics import metrics
from tulip_ood.numerics.tasks import Classification

__all__ = ["GROUPS", "Comparison", "MethodResult", "SetResult", "evaluate"]

GROUPS = ("near", "far")


@dataclass(frozen=True)
class SetResult:
    """One method on one OOD set.

    Attributes:
        scores: Of every input (every position, for dense outputs), float64 on the CPU.
        auroc: P(OOD score > ID score) + ½ P(equal).
        id_flagged_at_95_ood: OpenOOD's FPR@95.
        ood_missed_at_95_id: The share of OOD accepted where 95 % of ID are.
        refused: The share of OOD refused at the detector's own threshold.

    Example:
        >>> import torch
        >>> SetResult(torch.ones(2), 0.9, 0.2, 0.3, 0.8).auroc
        0.9
    """

    scores: Tensor
    auroc: float
    id_flagged_at_95_ood: float
    ood_missed_at_95_id: float
    refused: float


@dataclass(frozen=True)
class MethodResult:
    """One method on the ID test set and on every OOD set.

    Attributes:
        name: As in the mapping that was evaluated.
        id_scores: Of every ID test input, float64 on the CPU; +inf where there is none.
        wrong: 1 where the network's answer is wrong, NaN where that is not known.
        confidence: The probability given to the answer; NaN where there is none.
        sets: The result on each OOD set.
        accuracy: Share of right answers.
        aurc: Area under the risk–coverage curve of the network's own errors.
        augrc: Area under the generalised one.
        ece: Expected calibration error of `confidence`.
        nll: Mean −log of the probability given to the true class.
        threshold: The largest score that the detector accepts.
        coverage: The share of ID test inputs that it accepts.
        false_alarms: The share that it refuses: 1 − coverage.
        accepted_error: The error rate among those that it accepts.

    Example:
        >>> MethodResult.__dataclass_fields__["coverage"].type
        <class 'float'>
    """

    name: str
    id_scores: Tensor
    wrong: Tensor
    confidence: Tensor
    sets: dict[str, SetResult]
    accuracy: float
    aurc: float
    augrc: float
    ece: float
    nll: float
    threshold: float
    coverage: float
    false_alarms: float
    accepted_error: float


@dataclass(frozen=True)
class Comparison:
    """What `evaluate` found.

    Attributes:
        methods: The result of each method, in the order given.
        groups: "near" or "far" for each OOD set that has a group.
        n_id: The number of ID test inputs.
        n_ood: The number of inputs of each OOD set.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x}, {"wide": "far"})
        >>> 0 <= found.mean("msp", "auroc", group="far") <= 1
        True
    """

    methods: dict[str, MethodResult]
    groups: dict[str, str]
    n_id: int
    n_ood: dict[str, int]

    @property
    def sets(self) -> list[str]:
        """The OOD sets, in the order given."""
        return list(self.n_ood)

    def in_group(self, group: str | None) -> list[str]:
        """The sets of a group; all for None."""
        return [name for name in self.sets if group is None or self.groups.get(name) == group]

    def mean(self, method: str, metric: str, *, group: str | None = None) -> float:
        """The mean of a `SetResult`'s number over the sets of a group; NaN if it has none."""
        results = self.methods[method].sets
        values = [float(getattr(results[name], metric)) for name in self.in_group(group)]
        return sum(values) / len(values) if values else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Every number but the scores themselves, ready for JSON; None where there is none."""
        return {
            "n_id": self.n_id,
            "n_ood": dict(self.n_ood),
            "groups": dict(self.groups),
            "methods": {name: self._method_dict(name) for name in self.methods},
        }

    def _method_dict(self, name: str) -> dict[str, Any]:
        result = self.methods[name]
        out: dict[str, Any] = _numbers(result)
        out["sets"] = {each: _numbers(result.sets[each]) for each in self.sets}
        for group in GROUPS:
            if self.in_group(group):
                metrics_of_sets = ("auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id")
                out[group] = {m: _json(self.mean(name, m, group=group)) for m in metrics_of_sets}
        return out


def _numbers(result: MethodResult | SetResult) -> dict[str, float | None]:
    return {name: _json(value) for name, value in vars(result).items() if isinstance(value, float)}


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def evaluate(
    detectors: Mapping[str, Detector],
    id_test: tuple[Inputs, Tensor],
    ood: Mapping[str, Inputs],
    groups: Mapping[str, str] | None = None,
    *,
    progress: Callable[[str, str], None] | None = None,
) -> Comparison:
    """Score the same inputs with several fitted detectors.

    Args:
        detectors: Fitted detectors by the name to show.
        id_test: ID inputs and labels that neither training nor fitting has seen.
        ood: OOD inputs by the name of their set.
        groups: "near" or "far" for a set's name.
        progress: Called with (method, set) before each is scored; the ID test set is "ID".

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"ebo": tulip_ood.detectors.Energy(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> found.to_dict()["methods"]["ebo"]["sets"]["wide"]["auroc"] is not None
        True
    """
    inputs, labels = id_test
    groups = dict(groups or {})
    if not detectors:
        raise InputError("there are no detectors to compare")
    if unknown := {g for g in groups.values() if g not in GROUPS} | (set(groups) - set(ood)):
        raise InputError(
            f"groups must say 'near' or 'far' for names of OOD sets ({', '.join(ood)}); got "
            f"{', '.join(sorted(unknown))}"
        )
    sizes = {name: count_rows(part) for name, part in ood.items()}
    n_id = count_rows(inputs)
    if n_id != len(labels):
        raise InputError(f"there are {n_id} ID test inputs but {len(labels)} labels")
    if empty := [name for name, size in {"ID": n_id, **sizes}.items() if size == 0]:
        raise InputError(f"there are no inputs in {', '.join(empty)}")
    say = progress or (lambda method, name: None)
    methods = {}
    for name, detector in detectors.items():
        say(name, "ID")
        prediction = detector.predict(inputs)
        scores = {}
        for each, part in ood.items():
            say(name, each)
            scores[each] = _flat(detector.score(part))
        methods[name] = _result(name, detector, prediction, labels.cpu(), scores)
    return Comparison(methods, groups, n_id, sizes)


def _flat(scores: Tensor) -> Tensor:
    """One score a position; an input without a score is as unsure as can be."""
    flat = scores.detach().reshape(-1).to("cpu", torch.float64)
    return torch.where(flat.isnan(), math.inf, flat)


def _result(
    name: str,
    detector: Detector,
    prediction: Prediction,
    labels: Tensor,
    ood: Mapping[str, Tensor],
) -> MethodResult:
    assert detector.threshold is not None
    accepts = detector.threshold.accepts
    inside = _flat(prediction.score)
    wrong = _wrong(detector, prediction, labels)
    confidence, nll = _calibration(detector, prediction, labels)
    known, said = ~wrong.isnan(), ~(wrong.isnan() | confidence.isnan())
    accepted = accepts(inside)
    rated = accepted & known
    any_known, any_said = bool(known.any()), bool(said.any())
    return MethodResult(
        name=name,
        id_scores=inside,
        wrong=wrong,
        confidence=confidence,
        sets={each: _against(inside, outside, accepts) for each, outside in ood.items()},
        accuracy=1.0 - float(wrong[known].mean()),
        aurc=metrics.aurc(inside[known], wrong[known]) if any_known else math.nan,
        augrc=metrics.augrc(inside[known], wrong[known]) if any_known else math.nan,
        ece=metrics.ece(confidence[said], 1.0 - wrong[said]) if any_said else math.nan,
        nll=nll,
        threshold=detector.threshold.value,
        coverage=_share(accepted),
        false_alarms=1.0 - _share(accepted),
        accepted_error=float(wrong[rated].mean()),
    )


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
        wrong = wrong.any(dim=-1)
        return wrong.reshape(-1).to(torch.float64)
    known = torch.where(truth < 0, math.nan, wrong.to(torch.float64))
    return known.reshape(-1)


def _calibration(
    detector: Detector, prediction: Prediction, labels: Tensor
) -> tuple[Tensor, float]:
    """The probability of the answer, and the NLL of the truth; only where one class is true."""
    n = prediction.score.numel()
    if not isinstance(detector.task, Classification):
        return torch.full((n,), math.nan, dtype=torch.float64), math.nan
    probs = prediction.probs.cpu().to(torch.float64).reshape(n, -1)
    answer, truth = prediction.label.cpu().reshape(n, 1), labels.reshape(n)
    usable = (truth >= 0) & ~probs.isnan().any(dim=1)
    nll = metrics.nll(probs[usable], truth[usable]) if bool(usable.any()) else math.nan
    return probs.gather(1, answer).squeeze(1), nll
