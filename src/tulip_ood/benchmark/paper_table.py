"""The paper's table: near and far OOD, errors, the difference to entropy, published numbers."""

import math

from tulip_ood.benchmark.averages import Average, field_of, name_of
from tulip_ood.benchmark.bootstrap import Interval
from tulip_ood.benchmark.pooled import Best, Pooled, pool
from tulip_ood.benchmark.published import (
    BEST_KNOWN,
    DOUBTFUL,
    FITTED_ON_TRAINING_DATA,
    PAPERS_TULIP,
    PUBLISHED,
    Known,
    known_for,
)
from tulip_ood.benchmark.rendering import render
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.benchmark.table_model import NOTHING, Cell, Column, Row, Table, difference, number
from tulip_ood.benchmark.table_notes import (
    architectures,
    caption,
    finding_notes,
    group_title,
    listed,
    method_notes,
)
from tulip_ood.errors import InputError

__all__ = ["paper_table", "paper_table_model"]

REFERENCE = "ent"
_PAPERS, _DOUBT = "‡", "?"
_OF_GROUPS = (
    ("FPR@95 ↓", "id_flagged_at_95_ood"),
    ("AUROC ↑", "auroc"),
    ("missed@95 ↓", "ood_missed_at_95_id"),
)
_PUBLISHED_COLUMNS = (
    ("near FPR", "near_fpr"),
    ("near AUROC", "near"),
    ("far FPR", "far_fpr"),
    ("far AUROC", "far"),
)
_MEANING = (
    "In %, plain means over the sets. FPR@95: ID images refused where 95 % of OOD are caught "
    "(OpenOOD's meaning); missed@95: OOD images accepted where 95 % of ID are."
)
# What the published numbers were measured on.
_PUBLISHED_NETWORKS = {
    "cifar10": "ResNet18Small",
    "cifar100": "ResNet18Small",
    "imagenet200": "ResNet18",
    "imagenet": "ResNet50",
}
_MOST_NAMED = 8  # methods in a note
_ENOUGH_NETWORKS = 10  # the bootstrap of n sees (n − 1)/n of the variance between them


def paper_table(
    benchmark: Benchmark,
    track: str,
    *,
    pooled: Pooled | None = None,
    format: str = "text",  # noqa: A002 – what users call it
) -> str:
    """All methods of a track as the paper shows them.

    Args:
        benchmark: All runs.
        track: "val" or "train"; the two are never mixed.
        pooled: What `pool` found for that track; made here if it is not given.
        format: "text", "markdown", "latex" or "html".

    Example:
        >>> paper_table(Benchmark("cifar10", (), {}), "train")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: this benchmark has no runs on the track 'train'; it has none
    """
    return render(paper_table_model(benchmark, track, pooled=pooled), format)


def paper_table_model(benchmark: Benchmark, track: str, *, pooled: Pooled | None = None) -> Table:
    """The same before it has a form.

    Example:
        >>> paper_table_model(Benchmark("cifar10", (), {}), "train")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: this benchmark has no runs on the track 'train'; it has none
    """
    field = field_of(benchmark, track)
    if pooled is None:
        pooled = pool(benchmark, track)
    if pooled.track != track:
        raise InputError(
            f"the differences are those of the track {pooled.track!r}, the table shows {track!r}: "
            f"pool that track"
        )
    groups = [g for g in GROUPS if benchmark.in_group(g)]
    columns, cells = _ours(benchmark, pooled, groups)
    known = {name: known_for(benchmark.id_set, name) for name in pooled.methods}
    if any(known.values()):
        columns += [Column("published", title) for title, _ in _PUBLISHED_COLUMNS]
        for name, each in known.items():
            cells[name] += _published(benchmark.id_set, each)
    return Table(
        caption(benchmark, field, track, "OOD detection and error ranking"),
        tuple(columns),
        tuple(Row(name, tuple(own)) for name, own in cells.items()),
        (
            _MEANING,
            *_about_differences(pooled, groups),
            *_about_published(benchmark, known, track),
            *method_notes(benchmark, field, track, GROUPS),
            *finding_notes(benchmark, track),
        ),
    )


def _ours(
    benchmark: Benchmark, pooled: Pooled, groups: list[str]
) -> tuple[list[Column], dict[str, list[Cell]]]:
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {name: [] for name in pooled.methods}
    for group in groups:
        title = group_title(benchmark, group)
        for head, metric in _OF_GROUPS:
            columns.append(Column(title, head))
            _add_numbers(cells, pooled, group, metric, 100.0)
        if REFERENCE in cells:
            columns.append(Column(title, f"AUROC − {REFERENCE}"))
            for name, own in cells.items():
                gain = pooled.difference(name, REFERENCE, group, "auroc")
                if name not in pooled.judged:
                    gain = Interval(gain.value, math.nan, math.nan)
                own.append(Cell("") if name == REFERENCE else Cell(difference(gain)))
    if pooled.has("id", "aurc"):
        columns.append(Column("errors", "AURC × 10³ ↓"))
        _add_numbers(cells, pooled, "id", "aurc", 1000.0)
    return columns, cells


def _add_numbers(
    cells: dict[str, list[Cell]], pooled: Pooled, group: str, metric: str, unit: float
) -> None:
    best = pooled.clearly_best(group, metric)
    for name, own in cells.items():
        shown = Average(pooled.mean(name, group, metric), pooled.spread(name, group, metric))
        own.append(Cell(number(shown, unit=unit), bold=name == best.name))


def _published(id_set: str, known: Known | None) -> list[Cell]:
    if known is None:
        return [Cell(NOTHING) for _ in _PUBLISHED_COLUMNS]
    own = "" if known.same else _PAPERS
    cells = []
    for _, key in _PUBLISHED_COLUMNS:
        if key not in known.numbers:
            cells.append(Cell(NOTHING))
            continue
        doubt = _DOUBT if (id_set, known.method, key) in DOUBTFUL else ""
        cells.append(Cell(f"{known.numbers[key]:.2f}", mark=own + doubt))
    return cells


def _about_differences(pooled: Pooled, groups: list[str]) -> list[str]:
    notes = []
    if pooled.has("id", "aurc"):
        notes.append(
            "AURC: the error rate of accepted ID answers, averaged over how many are accepted."
        )
    if REFERENCE in pooled.methods:
        few = 1 < len(pooled.networks) < _ENOUGH_NETWORKS
        notes.append(
            f"AUROC − {REFERENCE}: in points, with a 95 % bootstrap interval over {pooled.chance}"
            f"{'. Over so few networks it is a rough one' if few else ''}."
        )
    else:
        notes.append(f"{REFERENCE} was not run on this track: no differences to it.")
    if len(pooled.judged) > 1:
        sure = (
            "Bold: better than every other method, with 0 outside the interval of each difference"
        )
        ties = [_tied(group, pooled.clearly_best(group, "auroc")) for group in groups]
        notes.append(". ".join([sure, *filter(None, ties)]) + ".")
    return notes


def _tied(group: str, best: Best) -> str:
    if best.name is not None:
        return ""
    first, *others = best.tied
    if len(others) > _MOST_NAMED:
        return f"In {group} AUROC {len(others)} methods are not told apart from {first}"
    return f"In {group} AUROC not told apart from {first}: {listed(others)}"


def _about_published(benchmark: Benchmark, known: dict[str, Known | None], track: str) -> list[str]:
    id_set = benchmark.id_set
    there = {name: each for name, each in known.items() if each is not None}
    if not there:
        return []
    from_paper = [name for name in there if name.partition("[")[0] in ("ent", "tulip", "mcd")]
    text = "Published: OpenOOD v1.5 leaderboard"
    if from_paper:
        text += f"; {listed(from_paper)}, and FPRs that it lacks: the TULiP paper"
    text += ". Parameters were chosen there on OOD validation data, on whole sets."
    others = _other_networks(benchmark, track)
    if others:
        text += f" Those are OpenOOD’s ResNets, here it is {listed(others)}: other networks."
    with_training_data = [n for n in there if n.partition("[")[0] in FITTED_ON_TRAINING_DATA]
    if with_training_data and track == "val":
        text += f" {listed(with_training_data)}: published with all training images."
    best = BEST_KNOWN[id_set]
    text += " Best post-hoc AUROC known: " + ", ".join(
        f"{group} {value:.2f} ({name})" for group, (value, name) in best.items()
    )
    notes = [f"{text}."]
    if any(not each.same for each in there.values()):
        notes.append(
            f"{_PAPERS} The paper’s TULiP, {PAPERS_TULIP}: another recipe than that of the row."
        )
    doubts = _doubts(id_set, there)
    if doubts:
        notes.append(f"{_DOUBT} Doubtful: {'; '.join(doubts)}.")
    return notes


def _other_networks(benchmark: Benchmark, track: str) -> list[str]:
    """Architectures that are not those of the published numbers."""
    expected = _PUBLISHED_NETWORKS[benchmark.id_set]
    found: dict[str, None] = {}
    for network, kind in architectures(benchmark, track).items():
        # torchvision calls all of its depths ResNet: there the network's name tells.
        full = f"{kind}50" if kind == "ResNet" and "resnet50" in name_of(network).lower() else kind
        if full != expected:
            found[full] = None
    return list(found)


def _doubts(id_set: str, there: dict[str, Known]) -> list[str]:
    """Each reason once for a method."""
    found: dict[tuple[str, str], None] = {}
    for each in there.values():
        for key in PUBLISHED[id_set][each.method]:
            why = DOUBTFUL.get((id_set, each.method, key))
            if why is not None:
                found[each.method, why] = None
    return [f"{method}: {why}" for method, why in found]
