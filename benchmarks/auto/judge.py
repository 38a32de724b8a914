"""The rule of `auto-1` and everything it was chosen among, on what `study.py` has stored.

    python benchmarks/auto/judge.py cifar10=c10_0.npz,c10_1.npz digits=… --left-out leaves=…

Writes result-judge.json: for every task the differences to plain entropy (AUROC near and far in
points, AURC in per cent, correctly classified mildly corrupted images refused at 5 % of the test
images in points), mean over its networks; the rule's worst sets with paired 95 % intervals; and how
well each kind of pseudo-OOD predicts real OOD over all candidate scores (Spearman's ρ).
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tulip_ood.detectors.evidence import weight_of
from tulip_ood.detectors.pseudo import KEEPS_LABEL, share_kept
from tulip_ood.numerics.metrics import aurc, auroc
from tulip_ood.shifts.kinds import kinds_for

Scores = Mapping[str, NDArray[np.float64]]  # by source
HERE = Path(__file__).parent
ORDER, SHAPED = "tulip[recipe=balanced]", "scale:85/gen/0.5/2.0/0.005"
NEIGHBOURS, RATIO = "knn", "none/ratio///0.005"
RULES: dict[str, Callable[[dict[str, Any], dict[str, float]], Any]] = {}
IMITATE = {"tile", "tiny_patch", "grating"}  # textures, as a benchmark's set of textures
DRAWS = 400


@dataclass(frozen=True)
class Studied:
    """One network's stored scores."""

    name: str
    header: dict[str, Any]
    table: NDArray[np.float32]
    methods: NDArray[np.float64]
    right: dict[str, NDArray[np.bool_]]

    @staticmethod
    def of(file: Path) -> "Studied":
        with np.load(file) as found:
            right = {k.removeprefix("right "): found[k] for k in found.files if k[:6] == "right "}
            table = (
                found["table"].astype(np.float32) if "table" in found.files else np.empty((0, 0))
            )
            header = json.loads(str(found["header"]))
            return Studied(file.stem, header, table, found["methods"], right)

    @property
    def sets(self) -> list[str]:
        return [*self.header["near"], *self.header["far"]]

    def column(self, name: str) -> dict[str, NDArray[np.float64]]:
        return self._cut(
            self.table[self.header["columns"].index(name)],
            self.header["sources"],
            self.header["sizes"],
        )

    def method(self, name: str) -> dict[str, NDArray[np.float64]]:
        sizes = dict(zip(self.header["sources"], self.header["sizes"], strict=True))
        sources = self.header["method sources"]
        row = self.methods[self.header["methods"].index(name)]
        return self._cut(row, sources, [sizes[source] for source in sources])

    @staticmethod
    def _cut(
        row: NDArray[Any], sources: Sequence[str], sizes: Sequence[int]
    ) -> dict[str, NDArray[np.float64]]:
        at = np.cumsum([0, *sizes])
        return {
            source: row[begin:end].astype(np.float64)
            for source, begin, end in zip(sources, at[:-1], at[1:], strict=True)
        }

    def standard(self, name: str) -> dict[str, NDArray[np.float64]]:
        """A method's scores on the scale of the test images (columns have one already)."""
        scores = self.method(name)
        low, middle, high = np.quantile(scores["test"], [0.16, 0.5, 0.84])
        return {n: (v - middle) / max((high - low) / 2, 1e-12) for n, v in scores.items()}

    def by_kind(self, column: str) -> dict[str, float]:
        """AUROC of held-out images against each kind of pseudo-OOD made from them."""
        scores = self.column(column)
        names = [n for n in scores if n.startswith("kind ")]
        return {n.removeprefix("kind "): auroc(scores["held out"], scores[n]) for n in names}

    def weights(self) -> dict[str, float]:
        """As `Auto.fit` finds them: on the usual kinds that do not keep the label."""
        accuracy, chance = self.right["held out"].mean(), 1 / self.header.get("classes", 10)
        kinds = [
            kind
            for kind in kinds_for("images")
            if share_kept(self.right[f"kind {kind}"].mean(), accuracy, chance) <= KEEPS_LABEL
        ]

        def mean(column: str) -> float:
            found = self.by_kind(column)
            return float(np.mean([found[kind] for kind in kinds]))

        entropy = mean("none/ent")
        return {c: weight_of(mean(c), entropy) for c in (SHAPED, NEIGHBOURS, RATIO)}

    def judge(self, scores: Scores) -> list[float]:
        def group(names: Sequence[str]) -> float:
            return 100 * float(np.mean([auroc(scores["test"], scores[n]) for n in names]))

        wrong = (~self.right["test"]).astype(np.float64)
        refused = scores["shifted"][self.right["shifted"]] > np.quantile(scores["test"], 0.95)
        return [
            group(self.header["near"]),
            group(self.header["far"]),
            aurc(torch.from_numpy(scores["test"]), torch.from_numpy(wrong)),
            100 * float(refused.mean()),
        ]

    def parts(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        found = {name: self.column(name) for name in (SHAPED, NEIGHBOURS, RATIO)}
        for name in ("ent", "noise", ORDER, "tulip", "tulip+scale"):
            if name in self.header["methods"]:
                found[f"method {name}"] = self.standard(name)
        return found


def above(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(x, 0.0)


def rule(name: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        RULES[name] = function
        return function

    return keep


@rule("**auto-1**")
def chosen(z: dict[str, Any], w: dict[str, float]) -> Any:
    k = w[NEIGHBOURS] * z[NEIGHBOURS]
    evidence = above(w[SHAPED] * z[SHAPED] + k - 1) + w[RATIO] * above(z[RATIO] - 1)
    return z[f"method {ORDER}"] + k / 2 + evidence


@rule("auto-1, strength 2")
def twice(z: dict[str, Any], w: dict[str, float]) -> Any:
    order = z[f"method {ORDER}"]
    return order + 2 * (chosen(z, w) - order)


@rule("auto-1 over plain entropy")
def over_entropy(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, w) - z[f"method {ORDER}"] + z["method ent"]


@rule("auto-1 over self-tuned TULiP")
def over_tuned(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, w) - z[f"method {ORDER}"] + z["method tulip"]


@rule("auto-1 without the ratio")
def no_ratio(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, {**w, RATIO: 0.0})


@rule("auto-1 without neighbours")
def no_neighbours(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, {**w, NEIGHBOURS: 0.0})


@rule("auto-1 without shaped features")
def no_shaping(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, {**w, SHAPED: 0.0})


@rule("auto-1, all weights 1")
def all_heard(z: dict[str, Any], w: dict[str, float]) -> Any:
    return chosen(z, dict.fromkeys(w, 1.0))


@rule("a plain sum of the four")
def plain_sum(z: dict[str, Any], w: dict[str, float]) -> Any:
    return z[f"method {ORDER}"] + z[SHAPED] + z[NEIGHBOURS] + z[RATIO]


def by_rule(one: Studied, function: Any, weights: dict[str, float]) -> Scores:
    parts = one.parts()
    sources = ["test", "shifted", *one.sets]
    return {s: function({n: p[s] for n, p in parts.items()}, weights) for s in sources}


def differences(one: Studied, scores: Scores) -> list[float]:
    base, found = one.judge(one.method("ent")), one.judge(scores)
    shares = [found[0] - base[0], found[1] - base[1], 100 * (found[2] / base[2] - 1)]
    return [*shares, found[3] - base[3]]


def paired(one: Studied, scores: Scores, name: str, seed: int) -> list[float]:
    """AUROC of a rule minus entropy's on one set, and its paired 95 % interval."""
    generator = np.random.default_rng(seed)
    plain, drawn = one.method("ent"), []
    inside, outside = len(scores["test"]), len(scores[name])
    for _ in range(DRAWS):
        i, o = generator.integers(inside, size=inside), generator.integers(outside, size=outside)
        new = auroc(scores["test"][i], scores[name][o])
        drawn.append(100 * (new - auroc(plain["test"][i], plain[name][o])))
    centre = 100 * (auroc(scores["test"], scores[name]) - auroc(plain["test"], plain[name]))
    return [centre, *np.quantile(drawn, [0.025, 0.975]).tolist()]


def predicts(networks: Sequence[Studied]) -> dict[str, list[float]]:
    """For every kind, Spearman's ρ with near and with far AUROC over all candidates."""
    from scipy.stats import spearmanr

    found: dict[str, list[list[float]]] = {}
    for one in networks:
        names = [c for c in one.header["columns"] if c != "norm"]
        kinds = [one.by_kind(c) for c in names]
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


def task_result(networks: Sequence[Studied], seed: int) -> dict[str, Any]:
    rows: dict[str, list[list[float]]] = {}
    intervals, weighed = {}, {}
    for one in networks:
        weights = one.weights()
        weighed[one.name] = {n: round(v, 2) for n, v in weights.items()}
        for method in one.header["methods"]:
            name = "auto (the first draft)" if method == "auto" else method
            rows.setdefault(name, []).append(differences(one, one.method(method)))
        for name, function in RULES.items():
            scores = by_rule(one, function, weights)
            rows.setdefault(name, []).append(differences(one, scores))
            if function is chosen:
                for s in one.sets:
                    intervals[f"{one.name}: {s}"] = paired(one, scores, s, seed)
    return {
        "networks": [one.name for one in networks],
        "accuracy": [one.header["accuracy"] for one in networks],
        "near": networks[0].header["near"],
        "far": networks[0].header["far"],
        "entropy": np.mean([one.judge(one.method("ent")) for one in networks], axis=0).tolist(),
        "weights": weighed,
        "rows": {name: np.mean(each, axis=0).round(3).tolist() for name, each in rows.items()},
        "rule against entropy": {k: np.round(v, 2).tolist() for k, v in intervals.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", help="NAME=FILE,FILE,…")
    parser.add_argument("--left-out", help="NAME=FILE,…: opened after the rule was frozen")
    parser.add_argument("--classes", nargs="*", default=[], help="NAME=NUMBER where not 10")
    parser.add_argument("--out", type=Path, default=HERE / "result-judge.json")
    given = parser.parse_args()
    classes = {k: int(v) for k, v in (each.split("=") for each in given.classes)}
    result: dict[str, Any] = {"tasks": {}, "kinds": {}}
    every = [*given.tasks, *([given.left_out] if given.left_out else [])]
    for seed, each in enumerate(every):
        name, files = each.split("=")
        networks = [Studied.of(Path(file)) for file in files.split(",")]
        for one in networks:
            one.header["classes"] = classes.get(name, 10)
        result["tasks"][name] = task_result(networks, seed)
        result["kinds"][name] = predicts(networks)
        print(name, result["tasks"][name]["rows"]["**auto-1**"], flush=True)
    result["left out"] = given.left_out.split("=")[0] if given.left_out else None
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
