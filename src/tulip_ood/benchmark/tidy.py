"""Every number of a benchmark as one long table: a row for each metric of each run.

What the columns `ood_set` and `group` say together:

| rows | `ood_set` | `group` |
|---|---|---|
| one OOD set against the ID test set | its name | "near" or "far" |
| the plain mean over the sets of a group | null | "near" or "far" |
| the ID test set alone (accuracy, AURC, …) | "" | "id" |
| ID classes under other conditions | its name | "shifted" |
| one OOD set, shifted ID sets counting as ID (full spectrum) | its name | "fs-near" or "fs-far" |
| the plain mean of those | null | "fs-near" or "fs-far" |

`n_id` and `n_ood` are the images that the number was computed from; `value` is null where a number
does not exist. Rows hold no time and no machine: equal results are equal rows.

`tune` says what parameters were chosen on, where a method has any: "ood" (OOD validation images),
"pseudo" (images made from the validation images) or "none". `aupr_in` and `aupr_out` are average
precision (a sum of steps); OpenOOD's AUPR joins the same points by straight lines (trapezoids), so
the two differ a little, most where OOD images are few.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tulip_ood.benchmark.averages import field_of
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet, Run, ShiftedResult
from tulip_ood.numerics import metrics

__all__ = ["COLUMNS", "correct_refused", "in_order", "tidy"]

COLUMNS = (
    "id_set",
    "network",
    "training_seed",
    "noise_seed",
    "method",
    "track",
    "n_val",
    "n_train",
    "parameters",
    "tune",
    "ood_set",
    "group",
    "stand_in",
    "n_id",
    "n_ood",
    "limit",
    "metric",
    "value",
)
_OF_A_RUN = ("accuracy", "aurc", "augrc", "ece", "nll", "false_alarms", "accepted_error")
_OF_SCORES = {
    "auroc": metrics.auroc,
    "id_flagged_at_95_ood": metrics.id_flagged_at_95_ood,
    "ood_missed_at_95_id": metrics.ood_missed_at_95_id,
    "aupr_in": metrics.aupr_in,
    "aupr_out": metrics.aupr_out,
}


def tidy(benchmark: Benchmark) -> list[dict[str, Any]]:
    """One row for every metric of every run, in an order that depends on the rows alone.

    Args:
        benchmark: All runs.

    Returns:
        Rows with the keys `COLUMNS`. AUPR is average precision, not OpenOOD's trapezoids (above).

    Example:
        >>> tidy(Benchmark("cifar10", (), {}))
        []
    """
    for track in {run.track for run in benchmark.runs}:
        field_of(benchmark, track)  # refuses runs that do not belong together
    return in_order(row for run in benchmark.runs for row in _rows(benchmark, run))


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, sorted by their columns from left to right; null comes first.

    Example:
        >>> row = dict.fromkeys(COLUMNS)
        >>> [r["metric"] for r in in_order([row | {"metric": "nll"}, row | {"metric": "aurc"}])]
        ['aurc', 'nll']
    """
    plain = [{name: row[name] for name in COLUMNS} for row in rows]
    return sorted(plain, key=lambda row: [(v is not None, v) for v in row.values()])


def correct_refused(scores: Tensor, wrong: Tensor, threshold: float) -> float:
    """The share of right answers that a detector refuses; NaN if none is right.

    Args:
        scores: Of every input.
        wrong: 1 where the network's answer is wrong.
        threshold: The largest score that is accepted.

    Example:
        >>> import torch
        >>> correct_refused(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([0.0, 0.0, 1.0]), 2.0)
        0.5
    """
    return float((_refused(scores, threshold)[wrong == 0]).mean())


def _refused(scores: Tensor, threshold: float) -> Tensor:
    # An input without a score (+inf) is refused whatever the threshold.
    return (~((scores <= threshold) & (scores < math.inf))).to(torch.float64)


def _rows(benchmark: Benchmark, run: Run) -> Iterator[dict[str, Any]]:
    head = {
        "id_set": run.id_set,
        "network": run.network,
        "training_seed": run.training_seed,
        "noise_seed": run.noise_seed,
        "method": run.method,
        "track": run.track,
        "n_val": run.n_val,
        "n_train": run.n_train,
        "parameters": json.dumps(
            dict(run.parameters), sort_keys=True, default=str, ensure_ascii=False
        ),
        "tune": run.tune,
        "limit": benchmark.limit,
    }
    for part in (_alone, _against_id, _shifted, _full_spectrum):
        for where, values in part(benchmark, run):
            for metric, value in values.items():
                known = value if math.isfinite(value) else None
                yield head | where | {"metric": metric, "value": known}


_Found = Iterator[tuple[dict[str, Any], dict[str, float]]]


def _alone(benchmark: Benchmark, run: Run) -> _Found:
    yield (
        _where(benchmark, run, "", "id"),
        {name: float(getattr(run.result, name)) for name in _OF_A_RUN},
    )


def _against_id(benchmark: Benchmark, run: Run) -> _Found:
    found = {
        name: _metrics(run.result.id_scores, part.scores) | {"refused": part.refused}
        for name, part in run.result.sets.items()
    }
    yield from _sets_and_means(benchmark, run, found, "")


def _full_spectrum(benchmark: Benchmark, run: Run) -> _Found:
    if not run.shifted:
        return
    inside = torch.cat([run.result.id_scores, *(part.scores for part in run.shifted.values())])
    found = {name: _metrics(inside, part.scores) for name, part in run.result.sets.items()}
    for where, values in _sets_and_means(benchmark, run, found, "fs-"):
        yield where | {"n_id": len(inside)}, values


def _metrics(inside: Tensor, outside: Tensor) -> dict[str, float]:
    return {name: metric(inside, outside) for name, metric in _OF_SCORES.items()}


def _sets_and_means(
    benchmark: Benchmark, run: Run, found: Mapping[str, dict[str, float]], prefix: str
) -> _Found:
    for name, values in found.items():
        yield _where(benchmark, run, name, prefix + benchmark.sets[name].group), values
    for group in GROUPS:
        members = [name for name in benchmark.in_group(group) if name in found]
        if members:
            yield (
                _of_group(benchmark, run, members, prefix + group),
                {
                    metric: sum(found[name][metric] for name in members) / len(members)
                    for metric in found[members[0]]
                },
            )


def _shifted(benchmark: Benchmark, run: Run) -> _Found:
    threshold = run.result.threshold
    for name, part in run.shifted.items():
        yield _where(benchmark, run, name, "shifted"), _under_shift(part, threshold)


def _under_shift(part: ShiftedResult, threshold: float) -> dict[str, float]:
    return {
        "accuracy": 1.0 - float(part.wrong.to(torch.float64).mean()),
        "correct_refused": correct_refused(part.scores, part.wrong, threshold),
        "refused": float(_refused(part.scores, threshold).mean()),
    }


def _where(benchmark: Benchmark, run: Run, name: str, group: str) -> dict[str, Any]:
    known = benchmark.sets[name] if name else _id_set(benchmark)
    scored = run.shifted if group == "shifted" else run.result.sets
    return {
        "ood_set": name,
        "group": group,
        "stand_in": known.stand_in if known is not None else None,
        "n_id": len(run.result.id_scores),
        "n_ood": len(scored[name].scores) if name else 0,
    }


def _id_set(benchmark: Benchmark) -> BenchmarkSet | None:
    return next((each for each in benchmark.sets.values() if each.group == "id"), None)


def _of_group(benchmark: Benchmark, run: Run, members: list[str], group: str) -> dict[str, Any]:
    """Where a mean belongs; it carries the stand-ins of all of its sets."""
    others = [
        f"{name}: {benchmark.sets[name].stand_in}"
        for name in members
        if benchmark.sets[name].stand_in is not None
    ]
    return {
        "ood_set": None,
        "group": group,
        "stand_in": "; ".join(others) or None,
        "n_id": len(run.result.id_scores),
        "n_ood": sum(len(run.result.sets[name].scores) for name in members),
    }
