"""What each part of `Auto` brings: the rule put together from stored scores, with and without.

    python benchmarks/auto/parts.py cifar10=cifar10_0.npz digits=digits_0.npz,digits_1.npz …

Reads what `columns.py` has stored. Writes result-parts.json: for every task the differences to
plain entropy as in judge.py, mean over its networks and for each; which voices were found; and the
rule on every set, with a paired 95 % interval.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import paired
from studied import Scores, Studied, of_tasks
from torch import Tensor

from tulip_ood.detectors.auto_voices import (
    FEATURES,
    JS,
    NOTHING_BELOW,
    OF_FEATURES,
    ORDER,
    TURNS,
    VOICES,
)
from tulip_ood.detectors.evidence import weight_of
from tulip_ood.detectors.loudness import CLEARLY, SILENT, quietened, voices
from tulip_ood.numerics.metrics import auroc

BASE, HELD, INSIDE = "base entropy", "held", "inside"
UNJUDGED = "depth"  # inner stages find all pseudo-OOD
PARTS = (*OF_FEATURES, "fdbd", "react", "ratio", "depth")
EARLIER = ("knn", "nci", "react", "ratio", "depth")  # auto-3's


@dataclass(frozen=True)
class Rule:
    """A rule like `Auto`'s.

    Attributes:
        parts: Which take part, beside TULiP.
        js: What J may be; the usual one only, if there is one.
        usual: Every opinion has its usual voice, whatever that does to the order of errors.
        mirror: Look at mirror images, too.
    """

    parts: tuple[str, ...] = PARTS
    js: tuple[float, ...] = JS
    usual: bool = False
    mirror: bool = True

    def without(self, *names: str) -> "Rule":
        return replace(self, parts=tuple(name for name in self.parts if name not in names))


FIXED = Rule(js=JS[-1:], usual=True)
RULES: dict[str, Rule] = {
    "**the rule**": Rule(),
    "the rule before, `auto-3`": replace(FIXED, parts=EARLIER),
    "usual voices": FIXED,
    "T alone": Rule(parts=()),
    "without neighbours": Rule().without("knn"),
    "without NCI": Rule().without("nci"),
    "without both": Rule().without(*OF_FEATURES),
    "without boundaries": Rule().without("fdbd"),
    "without clipped features": Rule().without("react"),
    "without the ratio": Rule().without("ratio"),
    "without inner stages": Rule().without("depth"),
    "without mirror images": Rule(mirror=False),
    "no noise at all": Rule(js=(0.0,)).without("ratio"),
}


class Network:
    """One network's columns, weighed and voiced as `Auto.fit` does it."""

    def __init__(self, file: str) -> None:
        self.studied = one = Studied.of(file)
        self.columns = {name: one.raw(name) for name in one.header["columns"]}
        self.kinds = [name for name in one.header["sources"] if name.startswith("kind ")]
        self.mild = [name for name in one.header["sources"] if name.startswith("mild_")]
        self.tried = {INSIDE, *self.kinds, *self.mild}

    def said(self, name: str, mirror: bool) -> Scores:
        """Of the image, or the mean over both."""
        both = mirror and self.studied.header["mirrors"]
        if not both or name not in self.columns or f"mirror {name.split()[-1]}" not in self.columns:
            return self.columns[name]
        one, two = self.columns[name], self.columns[f"mirror {name.split()[-1]}"]
        return {source: (one[source] + two[source]) / 2 for source in one}

    def z(self, said: Scores) -> dict[str, Tensor]:
        """Held-out images give the scale; what is tried on one half, that of this half."""
        found = {}
        for source, values in said.items():
            by = said[INSIDE if source in self.tried else HELD]
            low, middle, high = np.quantile(by, [0.16, 0.5, 0.84])
            found[source] = torch.from_numpy((values - middle) / max((high - low) / 2, 1e-12))
        return found

    def worth(self, name: str, said: Scores) -> float:
        if name == UNJUDGED:
            return 1.0

        def found(scores: Scores) -> float:
            return float(np.mean([auroc(scores[INSIDE], scores[kind]) for kind in self.kinds]))

        return weight_of(found(said), found(self.columns[BASE]), NOTHING_BELOW.get(name, 0.1))

    def opinions(self, rule: Rule, told: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
        """By name and source, z; with their worth, where an opinion is one part."""
        known = [name for name in rule.parts if name in self.columns]
        said = {name: self.said(name, rule.mirror) for name in known}
        worth = {name: self.worth(name, own) for name, own in said.items()}
        told["worth"] = {name: round(value, 2) for name, value in worth.items()}
        z = {name: self.z(own) for name, own in said.items() if worth[name]}
        lie = [name for name in OF_FEATURES if name in z]
        alone = {name: own for name, own in z.items() if name not in lie}
        if not lie:
            return alone
        together = {
            source: torch.stack([worth[name] * z[name][source] for name in lie]).sum(0)
            for source in z[lie[0]]
        }
        return {FEATURES: together, **alone}

    def score(self, rule: Rule, told: dict[str, Any]) -> Scores:
        opinions, right = self.opinions(rule, told), self.studied.right
        final = (HELD, "test", "shifted", *self.studied.sets)
        tried: dict[str, list[dict[str, Tensor]]] = {}
        for name, own in opinions.items():
            mild = torch.cat([own[copy][torch.from_numpy(right[copy])] for copy in self.mild])
            least = 0.0 if name == FEATURES else CLEARLY
            worth = told["worth"].get(name, 1.0)
            tried[name] = [
                {source: worth * voice.of(own[source]) for source in final}
                for voice in (SILENT, *voices(VOICES[name], mild, least))
            ]
        orders = [f"J {j:g} entropy" if j else BASE for j in rule.js]
        tried[ORDER] = [self.z(self.said(order, rule.mirror)) for order in orders]
        chosen = {name: len(own) - 1 for name, own in tried.items()}
        if not rule.usual:
            chosen = quietened(
                {name: [each[HELD] for each in tried[name]] for name in TURNS if name in tried},
                torch.from_numpy(self.columns[BASE][HELD]),
                torch.from_numpy(1.0 - right[HELD]),
            )
            if len(rule.js) > 1 and not rule.js[chosen[ORDER]]:
                chosen["ratio"] = 0
        told |= {"voices": chosen, "J": rule.js[chosen[ORDER]]}
        return {
            source: torch.stack(
                [own[chosen[name]][source] for name, own in tried.items()]
            ).sum(0).numpy()
            for source in final
        }  # fmt: skip

    def differences(self, scores: Scores) -> list[float]:
        return self.studied.beside(self.columns[BASE], scores)


def with_and_without(files: list[str]) -> dict[str, Any]:
    networks = [Network(file) for file in files]
    rows: dict[str, list[list[float]]] = {}
    weighed: dict[str, Any] = {}
    intervals: dict[str, list[float]] = {}
    rivals: dict[str, list[list[float]]] = {}
    for one in networks:
        for name in one.studied.methods:
            if name != "ent" and not name.startswith("auto"):  # which may be of another recipe
                found = one.differences(one.studied.method(name))
                rivals.setdefault(name, []).append(found)
        for name, rule in RULES.items():
            told: dict[str, Any] = {}
            scores = one.score(rule, told)
            rows.setdefault(name, []).append(one.differences(scores))
            if rule == Rule():
                weighed[one.studied.name] = told
                for outside in one.studied.sets:
                    between = paired(one.columns[BASE], scores, outside, seed=0)
                    intervals[f"{one.studied.name}: {outside}"] = np.round(between, 2).tolist()

    def mean(each: list[list[float]]) -> Any:
        return np.mean(each, axis=0).round(3).tolist()

    return {
        "networks": [one.studied.name for one in networks],
        "accuracy": [round(one.studied.header["accuracy"], 4) for one in networks],
        "errors": [int((~one.studied.right["test"]).sum()) for one in networks],
        "near": networks[0].studied.header["near"],
        "far": networks[0].studied.header["far"],
        "entropy": np.mean([one.studied.judge(one.columns[BASE]) for one in networks], 0).tolist(),
        "rivals": {n: mean(each) for n, each in {**rivals, "auto": rows["**the rule**"]}.items()},
        "voices": weighed,
        "rule against entropy": intervals,
        "rows": {name: mean(each) for name, each in rows.items()},
        "each": {name: np.round(each, 2).tolist() for name, each in rows.items()},
    }


def main() -> None:
    of_tasks(__doc__, Path(__file__).with_name("result-parts.json"), with_and_without)


if __name__ == "__main__":
    main()
