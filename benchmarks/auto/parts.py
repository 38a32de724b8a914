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

from tulip_ood.detectors.auto import CLEARLY, DOUBLY, EXPLAINED, MAY_LOSE, NOTHING_BELOW
from tulip_ood.detectors.evidence import weight_of
from tulip_ood.detectors.pseudo import KEEPS_LABEL, share_kept
from tulip_ood.numerics.metrics import auroc

ENTROPY, MIRROR = "entropy", "mirror"
EVIDENCE = {"react": DOUBLY, "knn": 1.0, "ratio": 1.0, "depth": DOUBLY}
NOT_JUDGED = "depth"  # inner stages find all pseudo-OOD


@dataclass(frozen=True)
class Rule:
    """A rule like `Auto`'s. Columns by the names that `columns.py` gives them."""

    order: str = "J 1.5, M 6"
    ratio: str = "ratio, M 6"
    mirror: bool = True
    evidence: Mapping[str, float] = field(default_factory=lambda: EVIDENCE)
    in_order: float = 0.5  # of neighbours
    neighbours_from: float | None = None  # a bar for them, whatever mild changes show
    explained: Mapping[str, float] = field(default_factory=lambda: EXPLAINED)  # none: bars of 1
    all_weights_1: bool = False
    first: bool = False  # auto-1: shaped features, heard together with neighbours

    def without(self, part: str) -> "Rule":
        left = {name: slope for name, slope in self.evidence.items() if name != part}
        return replace(self, evidence=left, in_order=0.0 if part == "knn" else self.in_order)


RULES: dict[str, Rule] = {
    "**the rule**": Rule(),
    "T alone": Rule(evidence={}, in_order=0.0),
    "without clipped features": Rule().without("react"),
    "without neighbours": Rule().without("knn"),
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
    "neighbours not in the order": Rule(in_order=0.0),
    "neighbours from their median on": Rule(
        in_order=0.0, neighbours_from=0.0, evidence={**EVIDENCE, "knn": 1.5}
    ),
    "all weights 1": Rule(all_weights_1=True),
    "bars of 1": Rule(explained={}),
    "the rule before, `auto-1`": Rule(order="J*, M 10", ratio="ratio, M 10", first=True),
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
        other = {"knn": "mirror, knn", "react": None, "depth": None}.get(name, MIRROR)
        if other is None or name.startswith(("ratio", "shaped")) or not (mirror and self.mirrors):
            return self.columns[name]
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
        limits = NOTHING_BELOW.get(name, 0.1)
        return weight_of(self.found(said), self.found(self.columns[ENTROPY]), limits)

    def bar(self, name: str, z: Mapping[str, Any], rule: Rule) -> float:
        if name == "knn" and rule.neighbours_from is not None:
            return rule.neighbours_from
        if name not in rule.explained:
            return CLEARLY
        said = np.concatenate([z[copy][self.studied.right[copy]] for copy in self.mild])
        return max(CLEARLY, float(np.quantile(said, rule.explained[name])))

    def score(self, rule: Rule, told: dict[str, Any]) -> Scores:
        columns = {name: rule.ratio if name == "ratio" else name for name in rule.evidence}
        said = {name: self.said(column, rule.mirror) for name, column in columns.items()}
        order = self.scaled(self.said(rule.order, rule.mirror))
        weights = {name: self.weight(name, own, rule) for name, own in said.items()}
        z = {name: self.scaled(own) for name, own in said.items()}
        slopes = dict(rule.evidence)
        if rule.first:
            shaped = self.columns.get("shaped", self.columns[ENTROPY])
            g, k = self.weight("shaped", shaped, rule), weights["knn"]
            of_shaped = self.scaled(shaped)
            z["react"] = {s: g * of_shaped[s] + k * z["knn"][s] for s in order}
            weights["react"], slopes["react"], slopes["knn"] = 1.0, 1.0, 0.0
        bars = {name: self.bar(name, own, rule) for name, own in z.items()}
        told |= {
            "weights": {name: round(value, 2) for name, value in weights.items()},
            "bars": {name: round(value, 2) for name, value in bars.items()},
        }

        def total(source: str) -> Any:
            values = order[source]
            if "knn" in z:
                values = values + rule.in_order * weights["knn"] * z["knn"][source]
            for name, own in z.items():
                beyond = np.maximum(own[source] - bars[name], 0.0)
                values = values + slopes[name] * weights[name] * beyond
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
