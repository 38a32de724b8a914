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
    "signs": "signs",
    "scenes": "scenes",
    "birds": "birds",
    "butterflies": "butterflies",
    "cards": "cards",
    "simpsons": "simpsons",
    "instruments": "instruments",
    "pets": "pets (left out)",
    "capitals": "capitals (left out)",
}
OPENED = {"sports": "sports", "plankton": "plankton"}  # for auto-3
FOURTH = {"dishes": "dishes", "hiragana": "hiragana"}  # for auto-4, which was not kept
FRESH = {"signs": "signs", "simpsons": "simpsons"}  # for auto-6
QUIET = "auto[n_samples=0]"
MEANS = ("all", "rivals", "first")


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


def method_names(tasks: dict[str, Any], *, everywhere: bool) -> list[str]:
    """The methods that were judged, on every task or on some; `auto` last."""
    rows = [set(own["rows"]) for own in tasks.values()]
    found = set.intersection(*rows) if everywhere else set.union(*rows)
    known = [name for own in tasks.values() for name in own["rows"]]
    others = [name for name in dict.fromkeys(known) if name in found - {"ent", "auto", QUIET}]
    return others + [name for name in (QUIET, "auto") if name in found]


def method_label(name: str) -> str:
    labels = {
        "auto": "**auto**", QUIET: "auto, no noise", "tulip[recipe=balanced]": "tulip, `balanced`",
    }  # fmt: skip
    return labels.get(name, name)


def judged(form: str) -> str:
    """Every fitted method on every task, as differences to entropy."""
    tasks = read("auto/result-judge.json")["tasks"]

    def cell(task: str, name: str) -> str:
        own = tasks[task]
        if name not in own["rows"]:
            return "–"
        some, all_ = len(own["each"][name]), len(own["networks"])
        return FORMS[form](own["rows"][name]) + ("" if some == all_ else f" ({some} of {all_})")

    names = method_names(tasks, everywhere=False)
    rows = [[method_label(name), *(cell(task, name) for task in TASKS)] for name in names]
    return table(["", *SHORT.values()], rows)


def over_tasks(tasks: dict[str, Any], name: str) -> list[float]:
    """A method's mean over the tasks: near, far, AURC (by its logarithm), shifted images.

    Where it cannot be had (features of a ViT are not shaped) it has entropy's score: that is what
    its user is left with.
    """
    each = np.array([task["rows"].get(name, [0.0] * 4) for task in tasks.values()])
    near, far, _, shifted = each.mean(0)
    return [near, far, 100 * float(np.expm1(np.log1p(each[:, 2] / 100).mean())), shifted]


def with_rivals(tasks: dict[str, Any]) -> dict[str, Any]:
    """The tasks on which the rivals were judged as well."""
    return {task: own for task, own in tasks.items() if "noise" in own["rows"]}


def on_same_networks() -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe before and this one, where both were judged on the same networks."""
    first, now = (read(f"auto/result-judge{file}.json")["tasks"] for file in ("-2", ""))
    same = [task for task in first if first[task]["accuracy"] == now[task]["accuracy"]]
    return {task: first[task] for task in same}, {task: now[task] for task in same}


def means(which: str) -> str:
    """Every method over many tasks; the one that finds most first.

    On all tasks those that were judged on all; on some the rivals, too; and the first recipe.
    """
    file = "judge-1" if which == "first" else "judge"
    tasks = read(f"auto/result-{file}.json")["tasks"]
    if which == "rivals":
        tasks = with_rivals(tasks)
    names = method_names(tasks, everywhere=which == "all")
    found = {name: over_tasks(tasks, name) for name in names}
    rows = [
        [
            "**auto-1**" if which == "first" and name == "auto" else method_label(name),
            signed(sum(found[name][:2]) / 2, 2),
            FORMS["auroc"](found[name]),
            f"{signed(found[name][2], 1)} %",
            FORMS["shifted"](found[name]),
        ]
        for name in sorted(found, key=lambda name: -sum(found[name][:2]))
    ]
    title = f"{len(tasks)} tasks, beside entropy"
    return table([title, "AUROC", "near / far", "AURC", "shifted refused"], rows)


def opened(file: str, titles: dict[str, str], which: str) -> str:
    """Tasks that were opened once, as differences to entropy: every method, or every part."""
    tasks = read(f"auto/{file}.json")
    tasks = tasks.get("tasks", tasks)
    head, forms = [], ("auroc", "aurc", "shifted")
    for task in titles:
        head += [f"{task}: near / far", "AURC", "shifted refused"]
    own = {task: tasks[task] for task in titles}
    first = own[next(iter(titles))]
    names = method_names(own, everywhere=True) if which == "methods" else list(first[which])
    key = "rows" if which == "methods" else which
    rows = []
    for name in names:
        found = [tasks[task][key][name] for task in titles]
        rows.append([method_label(name), *(FORMS[form](own) for own in found for form in forms)])
    return table(["", *head], rows)


def each_network(file: str, titles: dict[str, str]) -> str:
    """`Auto` on every network."""
    tasks = read(f"auto/{file}.json")["tasks"]
    rows = [
        [title if i == 0 else "", name, str(own["errors"][i])]
        + [FORMS[form](own["each"]["auto"][name]) for form in ("auroc", "aurc", "shifted")]
        for task, title in titles.items()
        for own in [tasks[task]]
        for i, name in enumerate(own["networks"])
    ]
    return table(["", "network", "test errors", "near / far", "AURC", "shifted refused"], rows)


def parts(form: str) -> str:
    """The rule with and without its parts, from stored scores, on every task."""
    found = settled_on("parts")
    rows = [
        [name, *(FORMS[form](own["rows"][name]) for own in found.values())]
        for name in found["cifar10"]["rows"]
    ]
    return table(["", *(SHORT.get(task, task) for task in found)], rows)


def settled_on(file: str) -> dict[str, Any]:
    """The tasks that were in view while a rule was made."""
    found = read(f"auto/result-{file}.json")
    return {task: own for task, own in found.items() if task not in FRESH}


def parts_means(file: str) -> str:
    """The same, mean over the tasks."""
    found = settled_on(file)
    rows = []
    for name in found["cifar10"]["rows"]:
        mean = over_tasks(found, name)
        networks = [each for own in found.values() for each in own["each"][name]]
        small = sum(each[2] <= 2 for each in networks)
        few = sum(each[3] <= 1 for each in networks)
        cells = [FORMS[form](mean) for form in ("auroc", "aurc", "shifted")]
        two = [FORMS["auroc"](found[task]["rows"][name]) for task in ("cifar10", "imagenet")]
        both = [f"{small} of {len(networks)}", f"{few} of {len(networks)}"]
        rows.append([name, *cells, *both, *two])
    head = ["near / far", "AURC", "shifted refused", "AURC at most 2 % worse"]
    return table(["", *head, "shifted at most 1 more", "CIFAR-10", "ImageNet-1K"], rows)


def loudness() -> str:
    """Which voices were found on every network."""
    titles = {
        "features": "features", "depth": "inner stages", "fdbd": "boundaries",
        "react": "clipped features", "ratio": "ratio",
    }  # fmt: skip
    rows = []
    for task, own in read("auto/result-parts.json").items():
        first = SHORT.get(task, task)
        each = zip(own["networks"], own["accuracy"], own["errors"], strict=True)
        for i, (network, accuracy, errors) in enumerate(each):
            told = own["voices"][network]
            voices = [str(told["voices"].get(name, "–")) for name in titles]
            score = own["each"]["**the rule**"][i]
            cells = [FORMS[form](score) for form in ("auroc", "aurc", "shifted")]
            before = FORMS["auroc"](own["each"]["the rule before, `auto-3`"][i])
            then = FORMS["aurc"](own["each"]["the rule before, `auto-3`"][i])
            known = [first, f"{100 * accuracy:.1f}", str(errors)]
            rows.append([*known, f"{told['J']:g}", *voices, *cells, before, then])
            first = ""
    head = ["", "accuracy, %", "test errors", "J", *titles.values()]
    now = ["near / far", "AURC", "shifted refused"]
    return table([*head, *now, "`auto-3`: near / far", "`auto-3`: AURC"], rows)


def before() -> str:
    """The recipe before, and this one, on the same networks."""
    first, now = on_same_networks()
    forms = ("near", "far", "aurc", "shifted")
    rows = [
        [
            SHORT[task],
            str(len(own["networks"])),
            *(
                " → ".join(FORMS[f](each[task]["rows"]["auto"]) for each in (first, now))
                for f in forms
            ),
        ]
        for task, own in first.items()
    ]
    mean = [over_tasks(each, "auto") for each in (first, now)]
    rows.append(["**mean**", "", *(" → ".join(FORMS[f](each) for each in mean) for f in forms)])
    return table(["", "networks", "near", "far", "AURC", "shifted refused"], rows)


def tasks(file: str, titles: dict[str, str]) -> str:
    """What the tasks are."""
    found = read(f"auto/{file}.json")
    found = found.get("tasks", found)
    rows = []
    for task, title in titles.items():
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


AUTO_TABLES: dict[str, Callable[[], str]] = {
    "combine": combine,
    **{f"auto-means-{which}": partial(means, which) for which in MEANS},
    **{f"auto-judged-{form}": partial(judged, form) for form in FORMS},
    "auto-networks": partial(each_network, "result-judge", TASKS),
    "auto-opened": partial(opened, "result-opened", OPENED, "methods"),
    "auto-opened-parts": partial(opened, "result-opened", OPENED, "parts"),
    "auto-fourth": partial(opened, "result-opened-4", FOURTH, "methods"),
    "auto-fourth-parts": partial(opened, "result-parts", FOURTH, "rows"),
    "auto-fresh": partial(opened, "result-parts", FRESH, "rivals"),
    "auto-fresh-parts": partial(opened, "result-parts", FRESH, "rows"),
    "auto-fresh-tasks": partial(tasks, "result-parts", FRESH),
    "auto-loudness": loudness,
    "auto-parts-3": partial(parts_means, "parts-3"),
    "auto-opened-networks": partial(each_network, "result-opened", OPENED),
    "auto-opened-tasks": partial(tasks, "result-opened", OPENED),
    "auto-parts": partial(parts_means, "parts"),
    **{f"auto-parts-{form}": partial(parts, form) for form in FORMS},
    "auto-before": before,
    "auto-tasks": partial(tasks, "result-judge", TASKS),
    "auto-kinds": kinds,
}
