"""Ways to combine scores, judged on the scores that finished benchmarks hold.

    python benchmarks/auto/combine.py cifar10=FOLDER cifar100=FOLDER

A folder is what `tulip bench` wrote to. Scores are centred and scaled on the ID test images (a
fitted `Auto` does so on validation images, which a benchmark does not keep the scores of). Every
number is a mean over networks, as a difference to plain entropy: AUROC near and far in points, AURC
in per cent, and in points the share of correctly classified shifted images that are refused where
95 % of the test images are accepted.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tulip_ood.benchmark.bench_loading import load_benchmark
from tulip_ood.benchmark.runs import Run
from tulip_ood.numerics.metrics import aurc, auroc

Columns = Mapping[str, Tensor]
T, S, K, N = "tulip", "tulip+scale", "knn", "noise"
RULES: dict[str, Callable[[Columns], Tensor]] = {
    "tulip": lambda z: z[T],
    "tulip+scale": lambda z: z[S],
    "knn": lambda z: z[K],
    "noise": lambda z: z[N],
    "tulip + knn": lambda z: z[T] + z[K],
    "tulip + tulip+scale": lambda z: z[T] + z[S],
    "tulip+scale + knn/2": lambda z: z[S] + z[K] / 2,
    "tulip + tulip+scale + knn/2": lambda z: z[T] + z[S] + z[K] / 2,
    "entropy + max(0, tulip+scale)": lambda z: z["ent"] + z[S].clamp_min(0),
    "tulip + max(0, knn)": lambda z: z[T] + z[K].clamp_min(0),
    "tulip + max(0, tulip+scale)": lambda z: z[T] + z[S].clamp_min(0),
    "tulip + max(0, tulip+scale − 1)": lambda z: z[T] + (z[S] - 1).clamp_min(0),
    "tulip + max(0, tulip+scale + knn)": lambda z: z[T] + (z[S] + z[K]).clamp_min(0),
    "the first draft: tulip + max(0, tulip+scale + knn/2)": lambda z: (
        z[T] + (z[S] + z[K] / 2).clamp_min(0)
    ),
    "tulip + 2 max(0, tulip+scale + knn/2)": lambda z: z[T] + 2 * (z[S] + z[K] / 2).clamp_min(0),
}


def scale(scores: Tensor) -> tuple[float, float]:
    at = torch.tensor([0.16, 0.5, 0.84], dtype=torch.float64)
    low, middle, high = torch.quantile(scores, at).tolist()
    return middle, (high - low) / 2


def judge(
    runs: Mapping[str, Run], rule: Callable[[Columns], Tensor], near: list[str]
) -> list[float]:
    scales = {name: scale(run.result.id_scores) for name, run in runs.items()}

    def combined(of: Callable[[Run], Tensor]) -> Tensor:
        return rule({n: (of(run) - scales[n][0]) / scales[n][1] for n, run in runs.items()})

    plain = runs["ent"].result
    inside = combined(lambda run: run.result.id_scores)
    groups: dict[bool, list[float]] = {True: [], False: []}
    for name in plain.sets:
        outside = combined(lambda run, name=name: run.result.sets[name].scores)
        groups[name in near].append(100 * auroc(inside, outside))
    found = [float(np.mean(groups[True])), float(np.mean(groups[False])), aurc(inside, plain.wrong)]
    for name, shifted in runs["ent"].shifted.items():
        scores = combined(lambda run, name=name: run.shifted[name].scores)
        right = scores[shifted.wrong == 0]
        found.append(100 * float((right > torch.quantile(inside, 0.95)).double().mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="+", help="cifar10=FOLDER, cifar100=FOLDER")
    given = parser.parse_args()
    result = {}
    for argument in given.benchmarks:
        id_set, folder = argument.split("=", 1)
        bench = load_benchmark(folder)
        near = [s.name for s in bench.sets.values() if s.group == "near"]
        used = ("ent", T, S, K, N)
        networks: dict[str, dict[str, Run]] = {}
        for run in bench.runs:
            if run.track == "val" and run.method in used:
                networks.setdefault(run.network, {})[run.method] = run
        base = np.array([judge(runs, lambda z: z["ent"], near) for runs in networks.values()])
        rows = {}
        for name, rule in RULES.items():
            values = np.array([judge(runs, rule, near) for runs in networks.values()])
            gain = values - base
            gain[:, 2] = 100 * gain[:, 2] / base[:, 2]
            rows[name] = [round(float(v), 2) for v in gain.mean(axis=0)]
            print(id_set, name, rows[name], flush=True)
        result[id_set] = {"networks": len(networks), "rules": rows}
    out = Path(__file__).with_name("result-combine.json")
    out.write_text(json.dumps({"command": "make evidence-auto", **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
