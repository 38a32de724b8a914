"""What each part of `Auto` brings, and which kinds of pseudo-OOD predict real OOD.

    python benchmarks/auto/parts.py cifar10=c10_0.npz,c10_1.npz digits=… --classes cifar100=100

From scores that `study.py` has computed by hand (--columns rule; all for --kinds). Writes
result-parts.json: the rule put together from stored scores, with and without its parts, as
differences to entropy, mean over a task's networks. With --kinds: result-kinds.json, how well each
kind of pseudo-OOD predicts real OOD over all candidate scores (Spearman's ρ).
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from studied import Scores, Studied, of_tasks

from tulip_ood.detectors.auto import CLEARLY, DEEPLY, EXPLAINED
from tulip_ood.detectors.auto import NOTHING_BELOW as LIMITS
from tulip_ood.detectors.evidence import NOTHING_BELOW, weight_of
from tulip_ood.detectors.pseudo import KEEPS_LABEL, share_kept
from tulip_ood.numerics.metrics import auroc
from tulip_ood.shifts.kinds import kinds_for

HERE = Path(__file__).parent
# The image itself, and with its mirror image.
ENTROPY, ORDER, BOTH = "none/ent", "order", "order, both"
SHAPED, NEIGHBOURS, RATIO, DEPTH = "shaped", "knn, both", "ratio", "depth"
ONE_IMAGE = {BOTH: ORDER, NEIGHBOURS: "knn"}
Columns, Numbers = dict[str, Any], dict[str, float]
RULES: dict[str, Callable[[Columns, Numbers, Numbers], Any]] = {}
IMITATE = {"tile", "tiny_patch", "grating"}  # textures, as a benchmark's set of textures


def by_kind(one: Studied, column: str) -> dict[str, float]:
    """AUROC of held-out images against each kind of pseudo-OOD made from them."""
    scores = one.column(column)
    names = [n for n in scores if n.startswith("kind ")]
    return {n.removeprefix("kind "): auroc(scores["held out"], scores[n]) for n in names}


def weights(one: Studied) -> Numbers:
    """As `Auto.fit` finds them: on the usual kinds that do not keep the label."""
    accuracy, chance = one.right["held out"].mean(), 1 / one.header.get("classes", 10)
    kinds = [
        kind
        for kind in kinds_for("images")
        if share_kept(one.right[f"kind {kind}"].mean(), accuracy, chance) <= KEEPS_LABEL
    ]

    def mean(column: str) -> float:
        found = by_kind(one, column)
        return float(np.mean([found[kind] for kind in kinds]))

    entropy = mean(ENTROPY)
    limits = {SHAPED: NOTHING_BELOW, NEIGHBOURS: LIMITS["knn"], RATIO: NOTHING_BELOW}
    found = {column: weight_of(mean(column), entropy, most) for column, most in limits.items()}
    return found | {DEPTH: DEEPLY}


def against(z: Columns, w: Numbers) -> Columns:
    """What speaks against an input."""
    both = w[SHAPED] * z[SHAPED] + w[NEIGHBOURS] * z[NEIGHBOURS]
    return {SHAPED: both, RATIO: z[RATIO], DEPTH: z[DEPTH]}


def bars(one: Studied, w: Numbers) -> Numbers:
    """As `Auto.fit` finds them: what mildly changed copies that are answered rightly say."""
    names = (SHAPED, NEIGHBOURS, RATIO, DEPTH)
    columns = {name: one.column(name) for name in names}
    mild = [source for source in one.header["sources"] if source.startswith("mild_")]
    said = {
        name: np.concatenate([columns[name][source][one.right[source]] for source in mild])
        for name in names
    }
    own = {SHAPED: "tulip+scale", RATIO: "ratio", DEPTH: "depth"}  # as `Auto` calls them
    return {
        name: max(CLEARLY, float(np.quantile(values, EXPLAINED[own[name]])))
        for name, values in against(said, w).items()
    }


def above(x: Any) -> Any:
    return np.maximum(x, 0.0)


def rule(name: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        RULES[name] = function
        return function

    return keep


@rule("**the rule**")
def chosen(z: Columns, w: Numbers, c: Numbers) -> Any:
    found = against(z, w)
    total = z[BOTH] + w[NEIGHBOURS] * z[NEIGHBOURS] / 2 + above(found[SHAPED] - c[SHAPED])
    return total + sum(w[name] * above(found[name] - c[name]) for name in (RATIO, DEPTH))


@rule("strength 2")
def twice(z: Columns, w: Numbers, c: Numbers) -> Any:
    return z[BOTH] + 2 * (chosen(z, w, c) - z[BOTH])


@rule("strength 0: TULiP and the mirror image")
def order(z: Columns, w: Numbers, c: Numbers) -> Any:
    return z[BOTH]


@rule("without inner stages")
def no_depth(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, {**w, DEPTH: 0.0}, c)


@rule("clearly is 1 for shaped features and ratio")
def low_bars(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, w, {**c, SHAPED: CLEARLY, RATIO: CLEARLY})


@rule("clearly is 1 for inner stages, too")
def no_bars(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, w, dict.fromkeys(c, CLEARLY))


@rule("without mirror images")
def no_mirror(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen({**z, **{both: z[one] for both, one in ONE_IMAGE.items()}}, w, c)


@rule("without the ratio")
def no_ratio(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, {**w, RATIO: 0.0}, c)


@rule("without neighbours")
def no_neighbours(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, {**w, NEIGHBOURS: 0.0}, c)


@rule("without shaped features")
def no_shaping(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, {**w, SHAPED: 0.0}, c)


@rule("over plain entropy")
def over_entropy(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, w, c) - z[BOTH] + z[ENTROPY]


@rule("all weights 1")
def all_heard(z: Columns, w: Numbers, c: Numbers) -> Any:
    return chosen(z, {**dict.fromkeys(w, 1.0), DEPTH: w[DEPTH]}, c)


@rule("a plain sum of the five")
def plain_sum(z: Columns, w: Numbers, c: Numbers) -> Any:
    return z[BOTH] + z[SHAPED] + z[NEIGHBOURS] + z[RATIO] + z[DEPTH]


def by_rule(one: Studied, function: Any, found: Numbers, clearly: Numbers) -> Scores:
    names = (ENTROPY, ORDER, BOTH, SHAPED, "knn", NEIGHBOURS, RATIO, DEPTH)
    parts = {name: one.column(name) for name in names}
    sources = ["test", "shifted", *one.sets]
    return {s: function({n: p[s] for n, p in parts.items()}, found, clearly) for s in sources}


def predicts(networks: Sequence[Studied]) -> dict[str, list[float]]:
    """For every kind, Spearman's ρ with near and with far AUROC over all candidates."""
    from scipy.stats import spearmanr

    found: dict[str, list[list[float]]] = {}
    for one in networks:
        names = [c for c in one.header["columns"] if c != "norm"]
        kinds = [by_kind(one, c) for c in names]
        real = [one.judge({**one.column(c)})[:2] for c in names]
        columns = {kind: [k[kind] for k in kinds] for kind in kinds[0]}
        every = list(columns)
        columns["all kinds, mean"] = np.mean([columns[k] for k in every], axis=0).tolist()
        others = [columns[k] for k in every if k not in IMITATE]
        columns["without tile, tiny_patch, grating"] = np.mean(others, axis=0).tolist()
        usual = [columns[k] for k in kinds_for("images")]
        columns["the seven of the recipes"] = np.mean(usual, axis=0).tolist()
        for kind, values in columns.items():
            pair = [float(spearmanr(values, [r[i] for r in real]).statistic) for i in (0, 1)]
            found.setdefault(kind, []).append(pair)
    return {kind: np.mean(pairs, axis=0).round(3).tolist() for kind, pairs in found.items()}


def with_and_without(networks: Sequence[Studied]) -> dict[str, Any]:
    rows: dict[str, list[list[float]]] = {}
    weighed = {}
    for one in networks:
        found = weights(one)
        clearly = bars(one, found)
        weighed[one.name] = {
            "weights": {name: round(value, 2) for name, value in found.items()},
            "clearly": {name: round(value, 2) for name, value in clearly.items()},
        }
        for name, function in RULES.items():
            scores = by_rule(one, function, found, clearly)
            rows.setdefault(name, []).append(one.differences(scores))
    means = {name: np.mean(each, axis=0).round(3).tolist() for name, each in rows.items()}
    return {"networks": [one.name for one in networks], "weights": weighed, "rows": means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", help="NAME=FILE,FILE,…")
    parser.add_argument("--classes", nargs="*", default=[], help="NAME=NUMBER where not 10")
    parser.add_argument("--kinds", action="store_true", help="the kinds instead of the parts")
    given = parser.parse_args()
    result: dict[str, Any] = {}
    for task, networks in of_tasks(given.tasks, given.classes):
        result[task] = predicts(networks) if given.kinds else with_and_without(networks)
    out = HERE / ("result-kinds.json" if given.kinds else "result-parts.json")
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
