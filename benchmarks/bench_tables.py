"""The tables of what `tulip bench` has measured, from the results under benchmarks/results/."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pyarrow.parquet as pq
from reading import read, table

from tulip_ood.benchmark.published import FITTED_ON_TRAINING_DATA, known_for
from tulip_ood.detectors.registry import METHODS as REGISTRY

__all__ = ["BENCH_TABLES"]

HERE = Path(__file__).parent
# Names in the documents for what `tulip bench` calls by its settings.
LABELS = {
    "tulip": "**tulip**",
    "tulip[recipe=balanced]": "tulip, `balanced`",
    "tulip[lam=0,recipe=balanced]": "tulip, `balanced`, λ = 0",
    "tulip-norm[recipe=balanced]": "tulip, `balanced`, D := ‖f(z)‖",
    "tulip[recipe=paper]": "tulip, `paper`",
    "tulip[recipe=paper,tune=ood]": "tulip, `paper`, J_scaling searched on TIN",
    "auto": "auto, first recipe (`auto-1`)",
}
THEN = {"auto": 13}  # passes of what was measured
Numbers = dict[str, dict[str, float]]  # by method and network


@cache
def results(name: str) -> list[dict[str, Any]]:
    """The rows of a benchmark's results."""
    rows: list[dict[str, Any]] = pq.read_table(
        HERE / "results" / name / "results.parquet"
    ).to_pylist()
    return rows


def numbers(name: str, track: str, metric: str, group: str, ood_set: str | None) -> Numbers:
    found: Numbers = {}
    for row in results(name):
        where = (row["track"], row["metric"], row["group"], row["ood_set"])
        if where == (track, metric, group, ood_set):
            found.setdefault(row["method"], {})[row["network"]] = row["value"]
    most = max(map(len, found.values()))
    return {method: values for method, values in found.items() if len(values) == most}


def spread(values: dict[str, float], factor: float = 100, digits: int = 2) -> str:
    own = [factor * value for value in values.values()]
    if len(own) == 1:
        return f"{own[0]:.{digits}f}"
    return f"{mean(own):.{digits}f} ± {pstdev(own):.{digits}f}"


def bench(name: str, track: str) -> str:
    """All methods of one track, mean and deviation over networks, the best near AUROC first."""
    near, far = (numbers(name, track, "auroc", group, None) for group in ("near", "far"))
    flagged = numbers(name, track, "id_flagged_at_95_ood", "near", None)
    aurc = numbers(name, track, "aurc", "id", "")
    id_set = results(name)[0]["id_set"]
    rows = []
    for method in sorted(near, key=lambda m: -mean(near[m].values())):
        known = known_for(id_set, method)
        if known is not None and (
            not known.same or (track == "val" and method in FITTED_ON_TRAINING_DATA)
        ):
            known = None  # published for another recipe, or on the other track
        gap, shown = "", ""
        if known is not None:
            shown = f"{known.numbers['near']:.2f} / {known.numbers['far']:.2f}"
            gap = f"{100 * mean(near[method].values()) - known.numbers['near']:+.2f}"
        rows.append(
            [
                LABELS.get(method, method),
                spread(near[method]),
                spread(far[method]),
                spread(flagged[method], digits=1),
                spread(aurc[method], 1000),
                shown,
                gap,
            ]
        )
    head = ["method", "near AUROC", "far AUROC", "near FPR@95 ↓", "AURC ×10³ ↓", "published", "gap"]
    return table(head, rows)


STEPS = (
    "ent",
    "noise",
    "tulip[lam=0,recipe=balanced]",
    "tulip-norm[recipe=balanced]",
    "tulip[recipe=balanced]",
    "tulip",
    "tulip+react",
    "tulip+scale",
    "tulip&knn",
    "auto",
    "tulip[recipe=paper]",
    "tulip[recipe=paper,tune=ood]",
)


def steps() -> str:
    """What each step brings, on both ID sets."""
    names = ("cifar10", "cifar100")
    cells: dict[str, list[str]] = {method: [] for method in STEPS}
    for name in names:
        near, far = (numbers(name, "val", "auroc", group, None) for group in ("near", "far"))
        aurc = numbers(name, "val", "aurc", "id", "")
        for method in STEPS:
            if method not in near:
                cells[method] += ["", ""]
                continue
            pair = " / ".join(f"{100 * mean(part[method].values()):.2f}" for part in (near, far))
            cells[method] += [pair, f"{1000 * mean(aurc[method].values()):.2f}"]
    head = ["near / far AUROC", "CIFAR-10", "AURC ↓", "CIFAR-100", "AURC ↓"]
    return table(head, [[LABELS.get(method, method), *cells[method]] for method in STEPS])


CHOICES = (
    "msp",
    "ent",
    "gen",
    "ebo",
    "scale",
    "knn",
    "tulip[recipe=balanced]",
    "tulip",
    "tulip+scale",
    "tulip&knn",
    "auto",
)


def choosing() -> str:
    """What a user may choose between: passes for an input, and how good on both ID sets."""
    cells: dict[str, list[str]] = {
        # The second part of a sum looks at the base pass of the first.
        method: [str(THEN.get(method) or REGISTRY[re.split(r"[\[+&]", method)[0]].passes)]
        for method in CHOICES
    }
    for name in ("cifar10", "cifar100"):
        near, far = (numbers(name, "val", "auroc", group, None) for group in ("near", "far"))
        aurc = numbers(name, "val", "aurc", "id", "")
        for method in CHOICES:
            pair = " / ".join(f"{100 * mean(part[method].values()):.1f}" for part in (near, far))
            cells[method] += [pair, f"{1000 * mean(aurc[method].values()):.1f}"]
    head = ["method", "passes", "CIFAR-10 near / far", "AURC ↓", "CIFAR-100 near / far", "AURC ↓"]
    return table(head, [[LABELS.get(method, method), *cells[method]] for method in CHOICES])


def shift() -> str:
    """Right answers refused on shifted ID images."""
    methods = ("msp", "ent", "ebo", "scale", "knn", "gram", "ensemble", "noise", "tulip")
    right = numbers("cifar10", "val", "correct_refused", "shifted", "cifar10c")
    inside = numbers("cifar10", "val", "false_alarms", "id", "")
    rows = [
        [LABELS.get(m, m), spread(inside[m], digits=1), spread(right[m], digits=1)] for m in methods
    ]
    return table(["method", "ID test refused, %", "right and refused, %"], rows)


def networks() -> str:
    """The trained networks."""
    rows = [
        [n["network"], n["best_epoch"], f"{100 * n['accuracy']:.2f}"]
        for n in read("training/result.json")["networks"]
    ]
    return table(["network", "best of 100 epochs", "test accuracy, %"], rows)


def imagenet() -> str:
    """The runner on images as large as ImageNet's."""
    names = {
        "small": "a very small network",
        "waiting": "one that leaves the CPU free (sleeps)",
        "resnet18": "ResNet-18 on the CPU",
    }
    rows = []
    for key, found in read("imagenet/result.json")["networks"].items():
        seconds = found["seconds"]
        rows.append(
            [
                names[key],
                f"{found['images']:,}",
                f"{found['images_per_s']:.1f}",
                f"{100 * found['reading_share']:.0f} %",
                f"{100 * found['decode_share_of_cpu']:.0f} %",
                f"{100 * seconds['both'] / min(seconds['reading'], seconds['passes']):.0f} %",
                f"{found['rss_mb']['peak']:,} MB",
            ]
        )
    head = ["network", "images", "images/s", "time reading", "CPU decoding", "overlap", "peak"]
    return table(head, rows)


BENCH_TABLES: dict[str, Callable[[], str]] = {
    "cifar10-val": lambda: bench("cifar10", "val"),
    "cifar10-train": lambda: bench("cifar10", "train"),
    "cifar10-dropout": lambda: bench("cifar10-dropout", "val"),
    "cifar100-val": lambda: bench("cifar100", "val"),
    "steps": steps,
    "choosing": choosing,
    "shift": shift,
    "networks": networks,
    "imagenet": imagenet,
}
