"""The paper's first table for the ID sets at hand, with what is published beside it."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from tulip_ood.benchmark.published import FITTED_ON_TRAINING_DATA, known_for
from tulip_ood.figures.canvas import Drawn
from tulip_ood.figures.drawn_table import Entry, PictureTable, draw_table, emphasise
from tulip_ood.figures.finished import Finished
from tulip_ood.figures.labels import id_name, method

__all__ = ["draw"]

# The paper's order: those with training data, those without, those that enhance others.
_BLOCKS = (
    ("mcd", "mds", "vim", "knn"),
    ("msp", "odin", "mls", "ash-b", "gen", "ebo", "ent"),
    ("react", "scale", "noise"),
    ("tulip[recipe=paper,tune=ood]", "tulip[recipe=balanced]", "tulip"),
)
_HEAD = ("FPR@95 ↓", "AUROC ↑", "published")
_METRICS = ("id_flagged_at_95_ood", "auroc")
_TRAINED = "‡"
_OTHERS = "¶"
_NOTHING = "–"


def draw(finished: Finished, out: str | Path = "figures") -> Drawn:
    """Draw `table-1` into a folder: near / far, mean over networks.

    Args:
        finished: Benchmarks of one or more ID sets.
        out: The folder.

    Example:
        >>> draw(Finished(()))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: table-1: there is nothing to show in these results
    """
    found = {id_set: _numbers(finished.of(id_set)) for id_set in finished.id_sets}
    blocks = [[m for m in b if any(m in by for by in found.values())] for b in _BLOCKS]
    names = [name for block in blocks for name in block]
    columns: list[list[Entry]] = []
    for id_set, by in found.items():
        for metric in _METRICS:
            own = [_entry(by.get(name), metric) for name in names]
            columns.append(emphasise(own, higher=metric == "auroc"))
        columns.append([_published(id_set, name) for name in names])
    rows = [
        (_label(name, found), [column[i] for column in columns]) for i, name in enumerate(names)
    ]
    starts = [sum(map(len, blocks[:i])) for i in range(1, len(blocks)) if blocks[i]]
    table = PictureTable(
        [(id_name(id_set), len(_HEAD)) for id_set in found],
        list(_HEAD) * len(found),
        rows,
        starts,
        _small_print(finished, found),
    )
    flat = [
        {"id_set": id_set, "method": name, **by[name]}
        for id_set, by in found.items()
        for name in names
        if name in by
    ]
    lacking = [s for s in ("cifar10", "cifar100", "imagenet200", "imagenet") if s not in found]
    lines = [f"no results of {id_name(name)} are at hand: tulip bench {name}" for name in lacking]
    return draw_table(table, "table-1", out, flat, lines)


def _numbers(finished: Finished) -> dict[str, dict[str, Any]]:
    """By method: near and far of each metric, over how many networks, on which track."""
    chief = _chief_networks(finished)
    found: dict[str, dict[str, Any]] = {}
    for track in ("val", "train"):  # where a method ran on both, training data is what it is for
        by = {
            (metric, group): finished.numbers(metric, group, track)
            for metric in _METRICS
            for group in ("near", "far")
        }
        for name in by["auroc", "near"]:
            if track == "train" and name not in FITTED_ON_TRAINING_DATA:
                continue
            ran = by["auroc", "near"][name]
            on = [n for n in ran if n in chief] or list(ran)
            found[name] = {
                "track": track,
                "networks": len(on),
                "other_networks": not set(on) <= chief,
                **{
                    f"{group}_{metric}": _mean_on(by[metric, group].get(name, {}), on)
                    for metric in _METRICS
                    for group in ("near", "far")
                },
            }
    return found


def _mean_on(by: Mapping[str, float], networks: list[str]) -> float | None:
    values = [100 * by[name] for name in networks if name in by]
    return mean(values) if values else None


def _chief_networks(finished: Finished) -> set[str]:
    """Those that most methods ran on: a network of its own for one method is not one of them."""
    by = finished.numbers("auroc", "near")
    counts = {n: sum(n in ran for ran in by.values()) for ran in by.values() for n in ran}
    return {n for n, count in counts.items() if 2 * count >= max(counts.values())}


def _entry(numbers: dict[str, Any] | None, metric: str) -> Entry:
    if numbers is None:
        return Entry(_NOTHING)
    near, far = (numbers[f"{group}_{metric}"] for group in ("near", "far"))
    if near is None or far is None:
        return Entry(_NOTHING)
    return Entry(f"{near:.1f} / {far:.1f}", near if not numbers["other_networks"] else None)


def _published(id_set: str, name: str) -> Entry:
    known = known_for(id_set, name)
    if known is None or not known.same or "near" not in known.numbers:
        return Entry(_NOTHING, quiet=True)
    return Entry(f"{known.numbers['near']:.1f} / {known.numbers['far']:.1f}", quiet=True)


def _label(name: str, found: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    own = [by[name] for by in found.values() if name in by]
    label = method(name)
    label += _TRAINED if any(n["track"] == "train" for n in own) else ""
    return label + (_OTHERS if any(n["other_networks"] for n in own) else "")


def _small_print(finished: Finished, found: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    every = [n for by in found.values() for n in by.values()]
    most = max((n["networks"] for n in every), default=0)
    text = f"near / far, mean over {most} networks. Bold and underlined: best and second near. "
    text += finished.small_print(": far differs from OpenOOD's")
    text += " Published: OpenOOD v1.5 and the paper, on whole sets."
    if any(n["track"] == "train" for n in every):
        text += f" {_TRAINED} fitted on training images where that was run, else on validation."
    if any(n["other_networks"] for n in every):
        text += f" {_OTHERS} on a network of its own (with dropout)."
    return text
