"""A benchmark as rows of a leaderboard, in CSV."""

import csv
import io
from collections.abc import Callable

from tulip_ood.benchmark.averages import average, field_of
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, Run
from tulip_ood.benchmark.table_model import number
from tulip_ood.benchmark.table_notes import DAGGER, fitting_notes, set_notes

__all__ = ["leaderboard_csv"]

_OF_GROUPS = {"AUROC": "auroc", "FPR@95": "id_flagged_at_95_ood"}


def leaderboard_csv(benchmark: Benchmark) -> str:
    """One line for each method and track; numbers in %, mean ± population standard deviation.

    The column `images` says how many of each set were scored, and whether they are a seeded subset;
    sets that are not the published ones have a dagger there, and the last column says what they
    are instead.

    Args:
        benchmark: All runs; methods that did not run on every network are left out.

    Example:
        >>> leaderboard_csv(Benchmark("cifar10", (), {})).split(",")[:3]
        ['method', 'training data', 'networks']
    """
    columns = _columns(benchmark)
    images = _images(benchmark)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["method", "training data", "networks", "network ids", "fitted on", "tuned on", "ID set"]
    writer.writerow([*head, "images", *columns, "sets that are not the published ones"])
    for track in sorted({run.track for run in benchmark.runs}, reverse=True):
        field = field_of(benchmark, track)
        notes = [*set_notes(benchmark, GROUPS), *fitting_notes(benchmark, track)]
        others = " ".join(note.removeprefix(f"{DAGGER} ") for note in notes)
        for name, by_network in field.methods.items():
            first = next(iter(by_network.values()))[0]
            if track == "train" and not first.n_train:
                continue  # a yardstick that learns nothing: its line is on the other track
            writer.writerow(
                [
                    name,
                    "yes" if first.n_train else "no",
                    len(field.networks),
                    " ".join(field.networks),
                    first.n_train or first.n_val,
                    first.tune if first.parameters else "",
                    benchmark.id_set,
                    images,
                    *(number(average(by_network, value)) for value in columns.values()),
                    others,
                ]
            )
    return out.getvalue()


def _images(benchmark: Benchmark) -> str:
    shown = [each for each in benchmark.sets.values() if each.group in ("id", *GROUPS)]
    parts = []
    for each in shown:
        of = "" if each.protocol_n is None else f" of {each.protocol_n:,}"
        mark = "" if each.whole else f" {DAGGER}"
        # Fewer than the limit are all that there are.
        drawn = ", seeded subset" if each.n == benchmark.limit and each.n != each.protocol_n else ""
        parts.append(f"{each.name}{mark}: {each.n:,}{of}{drawn}")
    return "; ".join(parts)


def _columns(benchmark: Benchmark) -> dict[str, Callable[[Run], float]]:
    found: dict[str, Callable[[Run], float]] = {}
    for group in GROUPS:
        names = benchmark.in_group(group)
        for title, metric in _OF_GROUPS.items():
            if names:
                found[f"{group} {title}"] = _mean(names, metric)
    for group in GROUPS:
        for name in benchmark.in_group(group):
            found[f"{name} AUROC"] = _mean([name], "auroc")
    found["ID accuracy"] = lambda run: run.result.accuracy
    return found


def _mean(names: list[str], metric: str) -> Callable[[Run], float]:
    return lambda run: sum(getattr(run.result.sets[n], metric) for n in names) / len(names)
