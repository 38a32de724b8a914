"""The tables of docs/research.md, from the result files under benchmarks/auto/."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from reading import read, table

__all__ = ["AUTO_TABLES"]

TASKS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
    "vit": "CIFAR-10, ViT",
    "imagenet": "ImageNet-1K",
    "leaves": "leaves",
    "signs": "signs (left out first)",
    "scenes": "scenes (left out then)",
    "birds": "birds (left out)",
    "butterflies": "butterflies (left out)",
    "cards": "cards (left out)",
}
# The parts were never looked at on the tasks that were left out.
BY_HAND = ("cifar10", "cifar100", "digits", "vit", "imagenet", "leaves")


def combine() -> str:
    """Ways to combine scores, as differences to entropy."""
    found = read("auto/result-combine.json")
    head = ["CIFAR-10: near / far", "AURC", "shifted refused", "CIFAR-100: near / far", "AURC"]
    rows = []
    for name, ten in found["cifar10"]["rules"].items():
        hundred = found["cifar100"]["rules"][name]
        rows.append(
            [
                f"**{name}**" if name.startswith("the first draft") else name,
                f"{ten[0]:+.2f} / {ten[1]:+.2f}",
                f"{ten[2]:+.1f} %",
                f"{ten[3]:+.1f}",
                f"{hundred[0]:+.2f} / {hundred[1]:+.2f}",
                f"{hundred[2]:+.1f} %",
            ]
        )
    return table(["score", *head], rows)


def signed(value: float, digits: int) -> str:
    """With its sign, unless it is rounded to nothing."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


# What is judged, and how it is written: AUROC near and far, AURC, shifted images refused.
FORMS: dict[str, Callable[[list[float]], str]] = {
    "near": lambda found: signed(found[0], 1),
    "far": lambda found: signed(found[1], 1),
    "auroc": lambda found: f"{signed(found[0], 1)} / {signed(found[1], 1)}",
    "aurc": lambda found: f"{signed(found[2], 0)} %",
    "shifted": lambda found: signed(found[3], 1),
}
SHORT = {name: title.partition(" (")[0] for name, title in TASKS.items()}


def method_names(tasks: dict[str, Any]) -> list[str]:
    """Every method that was judged, `auto` last."""
    return [name for name in tasks["leaves"]["rows"] if name not in ("ent", "auto")] + ["auto"]


def method_label(name: str) -> str:
    return {"auto": "**auto**", "tulip[recipe=balanced]": "tulip, `balanced`"}.get(name, name)


def judged(form: str) -> str:
    """Every fitted method on every task, as differences to entropy."""
    tasks = read("auto/result-judge.json")["tasks"]

    def cell(task: str, name: str) -> str:
        own = tasks[task]
        if name not in own["rows"]:
            return "–"
        some, all_ = len(own["each"][name]), len(own["networks"])
        return FORMS[form](own["rows"][name]) + ("" if some == all_ else f" ({some} of {all_})")

    rows = [
        [method_label(name), *(cell(task, name) for task in TASKS)] for name in method_names(tasks)
    ]
    return table(["", *SHORT.values()], rows)


def over_tasks(tasks: dict[str, Any], name: str) -> list[float]:
    """A method's mean over the tasks: near, far, AURC (by its logarithm), shifted images.

    Where it cannot be had (features of a ViT are not shaped) it has entropy's score: that is what
    its user is left with.
    """
    each = np.array([task["rows"].get(name, [0.0] * 4) for task in tasks.values()])
    near, far, _, shifted = each.mean(0)
    return [near, far, 100 * float(np.expm1(np.log1p(each[:, 2] / 100).mean())), shifted]


def means() -> str:
    """Every method over all tasks; the one that finds most first."""
    tasks = read("auto/result-judge.json")["tasks"]
    found = {name: over_tasks(tasks, name) for name in method_names(tasks)}
    order = sorted(found, key=lambda name: -sum(found[name][:2]))
    rows = [
        [
            method_label(name),
            signed(sum(found[name][:2]) / 2, 2),
            FORMS["auroc"](found[name]),
            f"{signed(found[name][2], 1)} %",
            FORMS["shifted"](found[name]),
        ]
        for name in order
    ]
    head = ["eleven tasks, beside entropy", "AUROC", "near / far", "AURC", "shifted refused"]
    return table(head, rows)


def each_network() -> str:
    """`Auto` on every network."""
    tasks = read("auto/result-judge.json")["tasks"]
    rows = [
        [title if i == 0 else "", name, str(own["errors"][i])]
        + [FORMS[form](own["each"]["auto"][name]) for form in ("auroc", "aurc", "shifted")]
        for task, title in TASKS.items()
        for own in [tasks[task]]
        for i, name in enumerate(own["networks"])
    ]
    return table(["", "network", "test errors", "near / far", "AURC", "shifted refused"], rows)


def parts(form: str) -> str:
    """The rule with and without its parts, from stored scores."""
    found = read("auto/result-parts.json")
    rows = [
        [name, *(FORMS[form](found[task]["rows"][name]) for task in BY_HAND)]
        for name in found["cifar10"]["rows"]
    ]
    return table(["", *(TASKS[task] for task in BY_HAND)], rows)


def tasks() -> str:
    """What the tasks are."""
    found = read("auto/result-judge.json")["tasks"]
    rows = []
    for task, title in TASKS.items():
        own = found[task]
        near, far, errors, _ = own["entropy"]
        rows.append(
            [
                title,
                str(len(own["networks"])),
                ", ".join(f"{100 * a:.1f}" for a in own["accuracy"]),
                ", ".join(own["near"]),
                ", ".join(own["far"]),
                f"{near:.1f} / {far:.1f}",
                f"{1000 * errors:.2f}",
            ]
        )
    head = ["", "networks", "accuracy, %", "near", "far", "entropy: near / far", "AURC × 10³"]
    return table(head, rows)


def kinds() -> str:
    """How well a kind of pseudo-OOD predicts real OOD, over all candidate scores."""
    found = read("auto/result-kinds.json")
    rows = [
        [kind, *(f"{own[kind][0]:.2f} / {own[kind][1]:.2f}" for own in found.values())]
        for kind in found["cifar10"]
    ]
    return table(["", *(TASKS[task] for task in found)], rows)


def again() -> str:
    """`Auto` on packs and networks made anew, beside what was judged first."""
    first, now = (read(f"auto/result-{name}.json")["tasks"] for name in ("judge", "again"))
    rows = []
    for task, own in now.items():
        then = first[task]["rows"]["auto"]
        rows.append(
            [
                SHORT[task],
                f"{len(first[task]['networks'])}, {len(own['networks'])}",
                *(
                    f"{FORMS[form](then)} → {FORMS[form](own['rows']['auto'])}"
                    for form in ("near", "far", "aurc", "shifted")
                ),
            ]
        )
    either = [over_tasks({t: found[t] for t in now}, "auto") for found in (first, now)]
    mean = [" → ".join(FORMS[f](v) for v in either) for f in ("near", "far", "aurc", "shifted")]
    rows.append(["**mean**", "", *mean])
    return table(["", "networks", "near", "far", "AURC", "shifted refused"], rows)


def orders() -> str:
    """The rule over other orders, mean over tasks, from stored scores."""
    found = read("auto/result-orders.json")
    rows = []
    for name in found["cifar10"]:
        own = {t: {"rows": {name: np.mean(list(v[name].values()), 0)}} for t, v in found.items()}
        mean = over_tasks(own, name)
        networks = [each for task in found.values() for each in task[name].values()]
        rows.append(
            [
                name,
                *(FORMS[form](mean) for form in ("auroc", "aurc", "shifted")),
                f"{sum(each[2] <= 2 for each in networks)} of {len(networks)}",
            ]
        )
    head = ["near / far", "AURC", "shifted refused", "AURC at most 2 % worse"]
    return table(["what orders the inputs", *head], rows)


AUTO_TABLES: dict[str, Callable[[], str]] = {
    "combine": combine,
    "auto-means": means,
    **{f"auto-judged-{form}": partial(judged, form) for form in FORMS},
    "auto-networks": each_network,
    **{f"auto-parts-{form}": partial(parts, form) for form in FORMS},
    "auto-tasks": tasks,
    "auto-kinds": kinds,
    "auto-again": again,
    "auto-orders": orders,
}
