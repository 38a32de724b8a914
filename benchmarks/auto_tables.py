"""The tables of docs/research.md, from the result files under benchmarks/auto/."""

from collections.abc import Callable

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


def _cell(values: list[float], networks: str = "") -> str:
    near, far, errors, shifted = values
    return f"{near:+.1f} / {far:+.1f}, {errors:+.0f} %, {shifted:+.1f}{networks}"


def judged() -> str:
    """Every fitted method on every task: near / far, AURC, shifted, as differences to entropy."""
    tasks = read("auto/result-judge.json")["tasks"]
    names = [name for name in tasks["leaves"]["rows"] if name not in ("ent", "auto")]

    def cell(task: str, name: str) -> str:
        own = tasks[task]
        if name not in own["rows"]:
            return "–"
        some, all_ = len(own["each"][name]), len(own["networks"])
        return _cell(own["rows"][name], "" if some == all_ else f" ({some} of {all_})")

    rows = [
        [f"**{name}**" if name == "auto" else name, *(cell(task, name) for task in TASKS)]
        for name in (*names, "auto")
    ]
    return table(["", *TASKS.values()], rows)


def each_network() -> str:
    """`Auto` on every network."""
    tasks = read("auto/result-judge.json")["tasks"]
    rows = [
        [title if i == 0 else "", name, str(own["errors"][i]), _cell(own["each"]["auto"][name])]
        for task, title in TASKS.items()
        for own in [tasks[task]]
        for i, name in enumerate(own["networks"])
    ]
    head = ["", "network", "test errors", "near / far, AURC, shifted"]
    return table(head, rows)


def parts() -> str:
    """The rule with and without its parts, from stored scores."""
    found = read("auto/result-parts.json")
    rows = [
        [name, *(_cell(found[task]["rows"][name]) for task in BY_HAND)]
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
                f"{near:.1f} / {far:.1f}, {1000 * errors:.2f}",
            ]
        )
    head = ["", "networks", "accuracy, %", "near", "far", "entropy: near / far, AURC · 10³"]
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
    "auto-judged": judged,
    "auto-networks": each_network,
    "auto-parts": parts,
    "auto-tasks": tasks,
    "auto-kinds": kinds,
}
