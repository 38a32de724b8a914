"""Fitted detectors on every task, beside plain entropy.

    python benchmarks/auto/judge.py cifar10=c10_0.npz,c10_1.npz digits=… --left-out birds=…

Reads what `study.py` or `columns.py` has stored (`a.npz+b.npz`: other methods on the same
network); `--add` leaves the tasks that stand in the file already. Writes result-judge.json: for
every task the differences to plain entropy (AUROC near and far in points, AURC in per cent,
correctly classified mildly corrupted images refused at 5 % of the test images in points), mean over
its networks and for each; `Auto` on every set, and its AURC, with a paired 95 % interval; what
fitting cost.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studied import Scores, Studied

from tulip_ood.numerics.metrics import aurc, auroc

DRAWS = 400


def paired(plain: Scores, scores: Scores, name: str, seed: int) -> list[float]:
    """AUROC of a score minus entropy's on one set, and its paired 95 % interval."""
    generator = np.random.default_rng(seed)
    drawn = []
    inside, outside = len(scores["test"]), len(scores[name])
    for _ in range(DRAWS):
        i, o = generator.integers(inside, size=inside), generator.integers(outside, size=outside)
        new = auroc(scores["test"][i], scores[name][o])
        drawn.append(100 * (new - auroc(plain["test"][i], plain[name][o])))
    centre = 100 * (auroc(scores["test"], scores[name]) - auroc(plain["test"], plain[name]))
    return [centre, *np.quantile(drawn, [0.025, 0.975]).tolist()]


def paired_order(one: Studied, scores: Scores, seed: int) -> list[float]:
    """AURC of a score beside entropy's in per cent, and its paired 95 % interval."""
    generator = np.random.default_rng(seed)
    both = [torch.from_numpy(each["test"]) for each in (one.method("ent"), scores)]
    wrong = torch.from_numpy((~one.right["test"]).astype(np.float64))

    def beside(rows: Any) -> float:
        plain, found = (aurc(each[rows], wrong[rows]) for each in both)
        return 100 * (found / plain - 1) if plain else 0.0  # drawn without an error

    draws = (generator.integers(len(wrong), size=len(wrong)) for _ in range(DRAWS))
    drawn = [beside(torch.from_numpy(rows)) for rows in draws]
    return [beside(slice(None)), *np.quantile(drawn, [0.025, 0.975]).tolist()]


def task_result(networks: Sequence[Studied], seed: int) -> dict[str, Any]:
    each: dict[str, dict[str, list[float]]] = {}
    intervals: dict[str, list[float]] = {}
    orders: dict[str, list[float]] = {}
    for one in networks:
        for method in one.methods:
            each.setdefault(method, {})[one.name] = one.differences(one.method(method))
        auto = one.method("auto")
        orders[one.name] = np.round(paired_order(one, auto, seed), 2).tolist()
        plain = one.method("ent")
        for name in one.sets:
            intervals[f"{one.name}: {name}"] = np.round(paired(plain, auto, name, seed), 2).tolist()
    return {
        "networks": [one.name for one in networks],
        "accuracy": [round(one.header["accuracy"], 4) for one in networks],
        "errors": [int((~one.right["test"]).sum()) for one in networks],
        "near": networks[0].header["near"],
        "far": networks[0].header["far"],
        "entropy": np.mean([one.judge(one.method("ent")) for one in networks], axis=0).tolist(),
        "rows": {
            name: np.mean(list(found.values()), axis=0).round(3).tolist()
            for name, found in each.items()
        },
        "each": {
            name: {network: np.round(values, 2).tolist() for network, values in found.items()}
            for name, found in each.items()
        },
        "auto against entropy": intervals,
        "order of errors, auto against entropy": orders,
        "auto": {one.name: one.header["about"]["auto"]["report"] for one in networks},
        "passes of a fit": {
            one.name: {m: about.get("passes") for m, about in one.header["about"].items()}
            for one in networks
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help="NAME=FILE,FILE,…")
    parser.add_argument(
        "--left-out", nargs="*", default=[], help="NAME=FILE,…: opened after the rule was settled"
    )
    parser.add_argument("--add", action="store_true", help="to the tasks that are in the file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "result-judge.json")
    given = parser.parse_args()
    before = json.loads(given.out.read_text()) if given.add else {"tasks": {}, "left out": []}
    found: dict[str, Any] = before["tasks"]
    for seed, each in enumerate([*given.tasks, *given.left_out], start=len(found)):
        name, files = each.split("=")
        found[name] = task_result([Studied.of(file) for file in files.split(",")], seed)
        print(name, found[name]["rows"]["auto"], flush=True)
    left_out = [*before["left out"], *(each.split("=")[0] for each in given.left_out)]
    result = {"tasks": found, "left out": left_out}
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
