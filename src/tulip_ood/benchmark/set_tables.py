"""Tables set by set: every OOD set a column, and ID classes under other conditions."""

from collections.abc import Callable

from tulip_ood.benchmark.averages import Field, average, field_of
from tulip_ood.benchmark.rendering import render
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, Run
from tulip_ood.benchmark.table_model import Cell, Column, Row, Table, number
from tulip_ood.benchmark.table_notes import caption, method_notes, set_title
from tulip_ood.benchmark.tidy import correct_refused
from tulip_ood.errors import InputError

__all__ = ["per_set_table", "per_set_table_model", "shift_table", "shift_table_model"]

_METRICS = {
    "auroc": ("AUROC ↑", "In %: how often an OOD image scores higher than an ID one."),
    "id_flagged_at_95_ood": (
        "FPR@95 ↓",
        "In %: ID images refused where 95 % of OOD are caught (OpenOOD's meaning).",
    ),
    "ood_missed_at_95_id": ("missed@95 ↓", "In %: OOD images accepted where 95 % of ID are."),
    "refused": ("refused ↑", "In %: OOD images refused at the threshold that a detector ships."),
}
_NO_BOLD = "Nothing is bold: the differences between methods have no intervals here."


def per_set_table(
    benchmark: Benchmark,
    track: str,
    metric: str = "auroc",
    *,
    format: str = "text",  # noqa: A002 – what users call it
) -> str:
    """One metric on every OOD set.

    Args:
        benchmark: All runs.
        track: "val" or "train".
        metric: "auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id" or "refused".
        format: "text", "markdown", "latex" or "html".

    Example:
        >>> per_set_table(Benchmark("cifar10", (), {}), "val", "f1")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no table of 'f1'; there is one of auroc, \
id_flagged_at_95_ood, ood_missed_at_95_id, refused
    """
    return render(per_set_table_model(benchmark, track, metric), format)


def per_set_table_model(benchmark: Benchmark, track: str, metric: str = "auroc") -> Table:
    """The same before it has a form.

    Example:
        >>> per_set_table_model(Benchmark("cifar10", (), {}), "val")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: this benchmark has no runs on the track 'val'; it has none
    """
    if metric not in _METRICS:
        raise InputError(f"there is no table of {metric!r}; there is one of {', '.join(_METRICS)}")
    field = field_of(benchmark, track)
    title, meaning = _METRICS[metric]
    columns, values = [], []
    for group in GROUPS:
        for name in benchmark.in_group(group):
            columns.append(Column(f"{group} OOD", set_title(benchmark.sets[name])))
            values.append(_of_set(name, metric))
    return Table(
        caption(benchmark, field, track, f"{title.split()[0]} on each OOD set"),
        tuple(columns),
        _rows(field, values),
        (meaning, _NO_BOLD, *method_notes(benchmark, field, track, GROUPS)),
    )


def _of_set(name: str, metric: str) -> Callable[[Run], float]:
    return lambda run: float(getattr(run.result.sets[name], metric))


def shift_table(
    benchmark: Benchmark,
    track: str,
    *,
    format: str = "text",  # noqa: A002 – what users call it
) -> str:
    """On ID classes under other conditions: accuracy, and right answers that are refused.

    Args:
        benchmark: All runs.
        track: "val" or "train".
        format: "text", "markdown", "latex" or "html".

    Example:
        >>> shift_table(Benchmark("cifar10", (), {}), "val")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: no ID set under other conditions was scored: there is nothing \
to show
    """
    return render(shift_table_model(benchmark, track), format)


def shift_table_model(benchmark: Benchmark, track: str) -> Table:
    """The same before it has a form.

    Example:
        >>> shift_table_model(Benchmark("cifar10", (), {}), "val")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: no ID set under other conditions was scored: there is nothing \
to show
    """
    names = benchmark.in_group("shifted")
    if not names:
        raise InputError("no ID set under other conditions was scored: there is nothing to show")
    field = field_of(benchmark, track)
    columns = []
    values: list[Callable[[Run], float]] = [lambda run: run.result.accuracy, _correct_refused("")]
    for title in ("ID test", *(set_title(benchmark.sets[name]) for name in names)):
        columns += [Column(title, "accuracy ↑"), Column(title, "right, refused ↓")]
    for name in names:
        values += [_accuracy(name), _correct_refused(name)]
    return Table(
        caption(benchmark, field, track, "ID classes under other conditions"),
        tuple(columns),
        _rows(field, values),
        (
            "In %. Right, refused: the share of correctly classified images that a detector "
            "refuses at the threshold it ships.",
            _NO_BOLD,
            *method_notes(benchmark, field, track, ["shifted"]),
        ),
    )


def _accuracy(name: str) -> Callable[[Run], float]:
    return lambda run: 1.0 - float(run.shifted[name].wrong.double().mean())


def _correct_refused(name: str) -> Callable[[Run], float]:
    """On a shifted set; "" is the ID test set."""

    def value(run: Run) -> float:
        if name:
            scores, wrong = run.shifted[name].scores, run.shifted[name].wrong
        else:
            scores, wrong = run.result.id_scores, run.result.wrong
        return correct_refused(scores, wrong, run.result.threshold)

    return value


def _rows(field: Field, values: list[Callable[[Run], float]]) -> tuple[Row, ...]:
    return tuple(
        Row(name, tuple(Cell(number(average(by_network, value))) for value in values))
        for name, by_network in field.methods.items()
    )
