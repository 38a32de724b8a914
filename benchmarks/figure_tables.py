"""What the figures say, in words and in a table, from benchmarks/figures/."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from reading import read, table

__all__ = ["FIGURE_TABLES"]

HERE = Path(__file__).parent
SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FIGURES = (
    "bound-regression",
    "bound-classification",
    "closeness",
    "lambda-sweep",
    "bound-histogram",
    "msp-shift",
    "enhancement",
    "ablation",
    "timing",
    "table-1",
    "table-2",
    "balanced-lambda",
    "self-tuning",
)


def says(name: str) -> str:
    """What a figure says, as the command printed it, and the command."""
    found = read("figures/result.json")[name]
    return "\n".join([*(f"- {line}" for line in found["says"]), f"- `{found['command']}`"])


def adds() -> str:
    """What each part of TULiP is worth: differences to the whole, in points."""
    names = {
        "ent": "entropy",
        "noise-input": "input noise, as many passes",
        "noise": "noise averaging alone",
        "tulip[lam=0,recipe=balanced]": "λ = 0",
        "tulip-norm[recipe=balanced]": "D := ‖f(z)‖",
        "tulip": "self-tuned",
    }
    found = pq.read_table(HERE / "figures" / "what-the-bound-adds.parquet").to_pylist()
    by = {(r["method"], r["source"], r["id_set"], r["group"]): r for r in found}

    def cell(*key: str) -> str:
        row = by.get(key)
        if row is None:
            return ""
        return (
            f"{100 * row['difference']:+.2f} ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})"
        )

    places = [(id_set, group) for id_set in ("cifar10", "cifar100") for group in ("near", "far")]
    rows = [
        [f"{words}, {source}", *(cell(method, source, *place) for place in places)]
        for method, words in names.items()
        for source in ("benchmark", "at hand")
        if any((method, source, *place) in by for place in places)
    ]
    head = ["less TULiP (`balanced`)", *(f"{SETS[i]} {group}" for i, group in places)]
    return table(head, rows)


FIGURE_TABLES: dict[str, Callable[[], str]] = {
    **{f"says-{name}": partial(says, name) for name in FIGURES},
    "adds": adds,
}
