"""What a comparison of detectors holds: every score, and every number that follows.

A detector that answers "can this be trusted?" is judged twice: does it tell OOD inputs from ID
ones, and does it rank the network's own errors? Both stand side by side here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["GROUPS", "Comparison", "MethodResult", "SetResult", "check_groups"]

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
        >>> from tulip_ood.benchmark.evaluate import evaluate
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


def check_groups(groups: Mapping[str, str], sets: Iterable[str]) -> dict[str, str]:
    """Groups of OOD sets, if they are "near" or "far" and the sets exist.

    Example:
        >>> check_groups({"svhn": "far"}, ["svhn", "tin"])
        {'svhn': 'far'}
    """
    known = list(sets)
    unknown = {g for g in groups.values() if g not in GROUPS} | (set(groups) - set(known))
    if unknown:
        raise InputError(
            f"groups must say 'near' or 'far' for names of OOD sets ({', '.join(known)}); got "
            f"{', '.join(sorted(unknown))}"
        )
    return dict(groups)
