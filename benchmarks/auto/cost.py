"""What `Auto` costs beside TULiP, in eager passes of the same network: one run, medians of turns.

    OMP_NUM_THREADS=2 python benchmarks/auto/cost.py --data IMAGES.npz --checkpoint FILE

IMAGES.npz holds CIFAR-10's images [N, 32, 32, 3] as `x`, labels as `y`. Detectors are fitted on the
first 1,000, as a user would, and score 100 others in turns. Writes result-cost.json.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import normalised
from torch import Tensor

from tulip_ood import Auto, Tulip
from tulip_ood.models.spec import load_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine

FOUR = ("tulip", "tulip+scale", "knn", "ratio")
DETECTORS: dict[str, Callable[[Any], Any]] = {
    "tulip, balanced": Tulip,
    "auto, without inner stages": lambda model: Auto(model, parts=FOUR),
    "auto": Auto,
}


def turn(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "result-cost.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(given.data) as found:
        pixels = torch.from_numpy(found["x"][:1100]).permute(0, 3, 1, 2).float() / 255
        labels = torch.from_numpy(found["y"][:1100].astype(np.int64))
    images = normalised(pixels)
    val, some = [(images[:1000], labels[:1000])], images[1000:]
    model = load_model(given.checkpoint).module.eval()

    def eager() -> Tensor:
        with torch.no_grad():
            return model(some)  # type: ignore[no-any-return]

    rows: dict[str, Any] = {}
    fitted = {}
    for name, make in DETECTORS.items():
        detector = make(model)
        recipe = {"recipe": "balanced"} if isinstance(detector, Tulip) else {}
        seconds = turn(lambda d=detector, r=recipe: d.fit(val, **r))  # type: ignore[misc]
        fitted[name] = detector
        rows[name] = {
            "seconds of a fit": round(seconds, 2),
            "passes of an input": detector._needs_to_score().passes,
        }
        print(name, rows[name], flush=True)
    works: dict[str, Callable[[], Any]] = {"eager": eager}
    works |= {name: lambda d=d: d.score(some) for name, d in fitted.items()}  # type: ignore[misc]
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(given.rounds):
        for name, work in works.items():
            times[name].append(turn(work))
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, row in rows.items():
        row["score, ms"] = round(1000 * middle[name], 1)
        row["score, eager passes"] = round(middle[name] / middle["eager"], 2)
        row["score, beside tulip"] = round(middle[name] / middle["tulip, balanced"], 3)
    result = {
        "machine": machine(threads=torch.get_num_threads()),
        "eager, ms": round(1000 * middle["eager"], 1),
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
