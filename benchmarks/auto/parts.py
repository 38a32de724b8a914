"""What each part of `Auto` brings: the rule put together from stored scores, with and without.

    python benchmarks/auto/parts.py cifar10=c10_0.npz,c10_1.npz digits=digits_0.npz …

Reads what `columns.py` has stored. Writes result-parts.json: for every task the differences to
plain entropy as in judge.py, mean over its networks, and what was weighed how.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from studied import Scores, Studied, of_tasks

from tulip_ood.detectors.auto import (
    CLEARLY,
    DOUBLY,
    EXPLAINED,
    MAY_LOSE,
    NOTHING_BELOW,
    OF_FEATURES,
    THEIR_SLOPE,
)
from tulip_ood.detectors.evidence import weight_of
from tulip_ood.detectors.pseudo import KEEPS_LABEL, share_kept
from tulip_ood.numerics.metrics import auroc

ENTROPY, MIRROR = "entropy", "mirror"
EVIDENCE = {"react": DOUBLY, "ratio": 1.0, "depth": DOUBLY}
NOT_JUDGED = "depth"  # inner stages find all pseudo-OOD
ALONE = ("react", "depth", "ratio")  # they speak of the image itself


@dataclass(frozen=True)
class Rule:
    """A rule like `Auto`'s. Columns by the names that `columns.py` gives them."""

    order: str = "J 1.5, M 6"
    ratio: str = "ratio, M 6"
    mirror: bool = True
    lie: tuple[str, ...] = OF_FEATURES
    slope: float = THEIR_SLOPE
    together: bool = True  # max(0, K + N), otherwise max(0, K) + max(0, N)
    in_order: bool = False  # no max at all: for all inputs
    evidence: Mapping[str, float] = field(default_factory=lambda: EVIDENCE)
    explained: Mapping[str, float] = field(default_factory=lambda: EXPLAINED)  # none: bars of 1
    nothing_below: Mapping[str, float] = field(default_factory=lambda: NOTHING_BELOW)
    all_weights_1: bool = False

    def without(self, part: str) -> "Rule":
        left = {name: slope for name, slope in self.evidence.items() if name != part}
        return replace(self, evidence=left, lie=tuple(name for name in self.lie if name != part))


# auto-2: half of the neighbours in the order of all inputs, and all of them beyond a bar.
SECOND = Rule(
    lie=("knn",),
    slope=0.5,
    in_order=True,
    evidence={**EVIDENCE, "knn": 1.0},
    explained={**EXPLAINED, "knn": 0.9},
    nothing_below={**NOTHING_BELOW, "knn": 0.05},
)
RULES: dict[str, Rule] = {
    "**the rule**": Rule(),
    "T alone": Rule(evidence={}, lie=()),
    "without neighbours": Rule().without("knn"),
    "without NCI": Rule().without("nci"),
    "without both": Rule(lie=()),
    "without clipped features": Rule().without("react"),
    "without the ratio": Rule().without("ratio"),
    "without inner stages": Rule().without("depth"),
    "without mirror images": Rule(mirror=False),
    "J = 1": Rule(order="J 1, M 6"),
    "J = 2": Rule(order="J 2, M 6"),
    "J\\*": Rule(order="J*, M 10"),
    "noise without a bound": Rule(order="noise, M 10"),
    "4 noisy passes": Rule(order="J 1.5, M 4", ratio="ratio, M 4"),
    "10 noisy passes": Rule(order="J 1.5, M 10", ratio="ratio, M 10"),
    "no noise at all": Rule(order=ENTROPY).without("ratio"),
    "neighbours and NCI apart": Rule(together=False),
    "neighbours and NCI in the order of all inputs": Rule(in_order=True),
    "1 instead of ¾": Rule(slope=1.0),
    "all weights 1": Rule(all_weights_1=True),
    "bars of 1": Rule(explained={}),
    "the rule before, `auto-2`": SECOND,
}


class Network:
    """One network's columns, weighed as `Auto.fit` weighs them."""

    def __init__(self, file: str) -> None:
        self.studied = one = Studied.of(file)
        self.columns = {name: one.raw(name) for name in one.header["columns"]}
        own, mirrored = one.header["mirrored"]
        self.mirrors = mirrored >= own - MAY_LOSE
        accuracy, chance = one.right["inside"].mean(), 1 / one.header["classes"]
        kinds = [name for name in one.header["sources"] if name.startswith("kind ")]
        kept = {k: share_kept(one.right[k].mean(), accuracy, chance) for k in kinds}
        self.kinds = [kind for kind in kinds if kept[kind] <= KEEPS_LABEL]
        self.mild = [name for name in one.header["sources"] if name.startswith("mild_")]

    def said(self, name: str, mirror: bool) -> Scores:
        """Of the image, or the mean over both."""
        if name.startswith(ALONE) or not (mirror and self.mirrors):
            return self.columns[name]
        other = f"{MIRROR}, {name}" if name in OF_FEATURES else MIRROR
        one, two = self.columns[name], self.columns[other]
        return {source: (one[source] + two[source]) / 2 for source in one}

    def scaled(self, said: Scores) -> dict[str, Any]:
        """Held-out images give the scale; what is tried on one half, that of this half."""

        def centred(source: str, by: str) -> Any:
            low, middle, high = np.quantile(said[by], [0.16, 0.5, 0.84])
            return (said[source] - middle) / max((high - low) / 2, 1e-12)

        tried = {"inside", *self.kinds, *self.mild}
        return {name: centred(name, "inside" if name in tried else "val") for name in said}

    def found(self, said: Scores) -> float:
        return float(np.mean([auroc(said["inside"], said[kind]) for kind in self.kinds]))

    def weight(self, name: str, said: Scores, rule: Rule) -> float:
        if rule.all_weights_1 or name == NOT_JUDGED:
            return 1.0
        limits = rule.nothing_below.get(name, 0.1)
        return weight_of(self.found(said), self.found(self.columns[ENTROPY]), limits)

    def bar(self, name: str, z: Mapping[str, Any], rule: Rule) -> float:
        if name not in rule.explained:
            return CLEARLY
        said = np.concatenate([z[copy][self.studied.right[copy]] for copy in self.mild])
        return max(CLEARLY, float(np.quantile(said, rule.explained[name])))

    def score(self, rule: Rule, told: dict[str, Any]) -> Scores:
        names = dict.fromkeys((*rule.lie, *rule.evidence))
        columns = {name: rule.ratio if name == "ratio" else name for name in names}
        said = {name: self.said(column, rule.mirror) for name, column in columns.items()}
        order = self.scaled(self.said(rule.order, rule.mirror))
        weights = {name: self.weight(name, own, rule) for name, own in said.items()}
        z = {name: self.scaled(own) for name, own in said.items()}
        bars = {name: self.bar(name, z[name], rule) for name in rule.evidence}
        told |= {
            "weights": {name: round(value, 2) for name, value in weights.items()},
            "bars": {name: round(value, 2) for name, value in bars.items()},
        }

        def total(source: str) -> Any:
            values = order[source]
            lie = [weights[name] * z[name][source] for name in rule.lie]
            if rule.together:
                lie = [np.sum(lie, axis=0)] if lie else []
            for one in lie:
                values = values + rule.slope * (one if rule.in_order else np.maximum(one, 0.0))
            for name, slope in rule.evidence.items():
                beyond = np.maximum(z[name][source] - bars[name], 0.0)
                values = values + slope * weights[name] * beyond
            return values

        return {source: total(source) for source in ("test", "shifted", *self.studied.sets)}

    def differences(self, scores: Scores) -> list[float]:
        return self.studied.beside(self.columns[ENTROPY], scores)


def with_and_without(files: list[str]) -> dict[str, Any]:
    networks = [Network(file) for file in files]
    rows: dict[str, list[list[float]]] = {}
    weighed: dict[str, Any] = {}
    for one in networks:
        for name, rule in RULES.items():
            told: dict[str, Any] = {}
            rows.setdefault(name, []).append(one.differences(one.score(rule, told)))
            if rule == Rule():
                weighed[one.studied.name] = told

    def mean(each: list[list[float]]) -> Any:
        return np.mean(each, axis=0).round(3).tolist()

    return {
        "networks": [one.studied.name for one in networks],
        "weights": weighed,
        "rows": {name: mean(each) for name, each in rows.items()},
        "each": {name: np.round(each, 2).tolist() for name, each in rows.items()},
    }


def main() -> None:
    of_tasks(__doc__, Path(__file__).with_name("result-parts.json"), with_and_without)


if __name__ == "__main__":
    main()
