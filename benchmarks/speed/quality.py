"""Do fast passes detect what plain ones in float32 detect? Part of run.py, with --quality.

The same network, scope, noise and J; each detector is fitted in the precision that it scores in.
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.cifar import load_network, load_sets, some

import tulip_ood
from tulip_ood.numerics.metrics import aurc, auroc, spearman

SCOPES = (("all", 10), ("all", 4), ("last-stage", 10), ("last-block", 10))
ON_A_CPU = (("all", 10), ("last-block", 10))
SETTING = {"epsilon": 0.005, "j": 1.5, "batch_size": 100}


def quality_of(checkpoint: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """AUROC of each set, AURC and the ranking, fast against plain."""
    model, mean, std = load_network(Path(checkpoint))
    model = model.to(options.device)
    sets = load_sets(Path(data), mean, std)
    found = []
    for scope, samples in SCOPES if options.device != "cpu" else ON_A_CPU:
        pair = {}
        for name in ("plain", "fast"):
            detector = fitted(model, sets, scope, samples, options, name == "fast")
            pair[name] = judged(detector, sets, options.inputs)
        found.append(compared(scope, samples, pair["plain"], pair["fast"]))
        print(found[-1], flush=True)
    held = all(row["spearman"] >= 0.999 and row["largest_auroc_difference"] <= 0.1 for row in found)
    return {"checkpoint": Path(checkpoint).name, "held": held, "scopes": found}


def fitted(
    model: Any,
    sets: dict[str, Tensor],
    scope: str,
    samples: int,
    options: argparse.Namespace,
    fast: bool,
) -> tulip_ood.Tulip:
    chosen = ",".join(filter(None, ("earned=0", options.fast)))
    os.environ["TULIP_OOD_FAST"] = chosen if fast else "off"
    half = fast and options.device != "cpu"
    detector = tulip_ood.Tulip(
        model,
        scope=scope,
        n_samples=samples,
        precision="half" if half else "float32",
        **SETTING,
    )
    labelled = tuple(some(sets[name], options.inputs) for name in ("id_val", "id_val_labels"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector.fit([labelled], recipe="balanced")
    if fast and detector.engine.fast.refused:
        raise RuntimeError(detector.engine.fast.refused)
    return detector


def judged(detector: tulip_ood.Tulip, sets: dict[str, Tensor], most: int) -> dict[str, Any]:
    began = time.perf_counter()
    inside = detector.predict(some(sets["id_test"], most))
    scores = {"id": inside.score}
    for name, x in sets.items():
        if name.startswith(("near_", "far_")):
            scores[name] = detector.score(some(x, most))
    wrong = (inside.label.cpu() != some(sets["id_test_labels"], most)).double()
    return {
        "scores": scores,
        "aurc": aurc(inside.score, wrong),
        "seconds": time.perf_counter() - began,
    }


def compared(
    scope: str, samples: int, plain: dict[str, Any], fast: dict[str, Any]
) -> dict[str, Any]:
    sets = [name for name in plain["scores"] if name != "id"]

    def aurocs(found: dict[str, Any]) -> dict[str, float]:
        scores = found["scores"]
        return {name: 100 * auroc(scores["id"], scores[name]) for name in sets}

    one, two = aurocs(plain), aurocs(fast)
    every = [torch.cat(list(found["scores"].values())) for found in (plain, fast)]
    return {
        "scope": scope,
        "samples": samples,
        "auroc_plain": {name: round(value, 3) for name, value in one.items()},
        "auroc_fast": {name: round(value, 3) for name, value in two.items()},
        "largest_auroc_difference": round(max(abs(one[n] - two[n]) for n in sets), 4),
        "aurc_plain": round(1000 * plain["aurc"], 4),
        "aurc_fast": round(1000 * fast["aurc"], 4),
        "spearman": round(spearman(*every), 6),
        "seconds_plain": round(plain["seconds"], 2),
        "seconds_fast": round(fast["seconds"], 2),
    }
