"""The tables of docs/research.md, from the result files under benchmarks/auto/."""

from collections.abc import Callable

from reading import read, table

__all__ = ["AUTO_TABLES"]

TASKS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
    "imagenet": "ImageNet-1K",
    "leaves": "leaves (left out)",
}


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


def judged() -> str:
    """Every method and rule on every task: near / far, AURC, shifted, as differences to entropy."""
    tasks = read("auto/result-judge.json")["tasks"]
    names = list(tasks["cifar10"]["rows"])

    def cell(task: str, name: str) -> str:
        near, far, errors, shifted = tasks[task]["rows"][name]
        return f"{near:+.1f} / {far:+.1f}, {errors:+.0f} %, {shifted:+.1f}"

    rows = [[name, *(cell(task, name) for task in TASKS)] for name in names if name != "ent"]
    return table(["", *TASKS.values()], rows)


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
                f"{near:.1f} / {far:.1f}, {1000 * errors:.2f}",
            ]
        )
    head = ["", "networks", "accuracy, %", "near", "far", "entropy: near / far, AURC · 10³"]
    return table(head, rows)


def kinds() -> str:
    """How well a kind of pseudo-OOD predicts real OOD, over all candidate scores."""
    found = read("auto/result-judge.json")["kinds"]
    rows = [
        [kind, *(f"{found[t][kind][0]:.2f} / {found[t][kind][1]:.2f}" for t in TASKS)]
        for kind in found["cifar10"]
    ]
    return table(["", *TASKS.values()], rows)


AUTO_TABLES: dict[str, Callable[[], str]] = {
    "combine": combine,
    "auto-judged": judged,
    "auto-tasks": tasks,
    "auto-kinds": kinds,
}
