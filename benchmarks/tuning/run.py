"""What self-tuning chooses within its budget, beside the full search and the fixed recipes.

    make evidence-tuning DATA=sets.npz CHECKPOINT=cifar10.safetensors [MORE=--auto]

`self-1` (best mean rank) and `self-2` (highest mean AUROC) search on at most 256 validation inputs
and 128 of each kind, with four noisy passes. The "full" rows search the same grid with every input
of the fitting half and ten noisy passes. No OOD image is used by either; near and far AUROC are
what came out. Writes one JSON file. With `--auto` only `Auto` is measured, on the same images, and
its rows stand beside those that are in the file (half an hour on two cores).
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.cifar import groups, load_network, load_sets
from measuring import machine

import tulip_ood
from tulip_ood.detectors.recipes import Budget
from tulip_ood.numerics import metrics


def evaluate(
    detector: Any, sets: dict[str, torch.Tensor], model: torch.nn.Module
) -> dict[str, Any]:
    inside = detector.score(sets["id_test"])
    with torch.no_grad():
        answers = torch.cat(
            [model(x.to(device_of(model))).argmax(1).cpu() for x in sets["id_test"].split(500)]
        )
    row: dict[str, Any] = {}
    for group, names in groups(sets).items():
        each = {n: metrics.auroc(inside, detector.score(sets[n])) for n in names}
        row[f"auroc_{group}"] = round(100 * sum(each.values()) / len(each), 2)
    row["aurc"] = round(1000 * metrics.aurc(inside, answers != sets["id_test_labels"]), 2)
    return row


def beside(file: Path, entropy: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is in the file, and its rows without `Auto`'s; entropy must have come out the same."""
    result = json.loads(file.read_text())
    others = [row for row in result["rows"] if not row["detector"].startswith("auto")]
    (stored,) = (row for row in others if row["detector"] == "ent")
    for key in ("auroc_near", "auroc_far", "aurc"):
        if abs(stored[key] - entropy[key]) > 0.011:
            raise SystemExit(f"{key} of entropy is {entropy[key]}, in {file} {stored[key]}")
    return result, others


def device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--auto", action="store_true", help="Auto, beside what is in the file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", tulip_ood.TulipWarning)
    model, mean, std = load_network(arguments.checkpoint)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    sets = load_sets(arguments.data, mean, std)
    fit = [(sets["id_val"], sets["id_val_labels"])]
    rows: list[dict[str, Any]] = []

    def add(name: str, seed: int, detector: Any, **settings: Any) -> None:
        start = time.perf_counter()
        detector.fit(fit, **settings)
        row = {"detector": name, "noise_seed": seed}
        row["fit_seconds"] = round(time.perf_counter() - start, 2)
        row |= evaluate(detector, sets, model)
        state, tuning = detector._state, getattr(detector, "_tuning", None)
        if hasattr(state, "setting"):
            row |= {"epsilon": state.setting.epsilon, "j": round(state.j_score, 3)}
            row["lam_over_balanced"] = round(state.lam / state.balanced_lam, 3)
            row["inactive"] = round(state.inactive, 3)
        if tuning is not None:
            plain = 12 * max(len(sets["id_val"]), 1000)
            spent = tuning.forwards + 12 * len(sets["id_val"])
            row["cost_in_plain_calibrations"] = round(spent / plain, 2)
        rows.append(row)
        print(row, flush=True)

    def write(result: dict[str, Any]) -> None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")

    add("ent", 0, tulip_ood.detectors.Entropy(model))
    where = machine(threads=torch.get_num_threads())
    if device == "cuda":
        where["device"] = torch.cuda.get_device_name()
    if arguments.auto:
        result, others = beside(arguments.out, rows.pop())
        about = {"recipe": tulip_ood.Auto.recipe, **where}
        add("auto, no noise", 0, tulip_ood.Auto(model, n_samples=0))
        for seed in range(arguments.seeds):
            add("auto", seed, tulip_ood.Auto(model, seed=seed))
            write(result | {"rows": others + rows, "auto": about})  # a seed takes ten minutes
        return
    add("paper-1", 0, tulip_ood.Tulip(model), recipe="paper")
    for seed in range(arguments.seeds):
        add("balanced-1", seed, tulip_ood.Tulip(model, seed=seed), recipe="balanced")
        add("self-1", seed, tulip_ood.Tulip(model, seed=seed), recipe="self-1")
        add("self-2", seed, tulip_ood.Tulip(model, seed=seed), recipe="self-2")
        for recipe in ("self-1", "self-2"):
            full = tulip_ood.Tulip(model, seed=seed)
            full.budget = Budget(id_inputs=10**9, kind_inputs=10**9, samples=10)
            add(f"{recipe}, full search", seed, full, recipe=recipe)
    result = {
        "checkpoint": arguments.checkpoint.name,
        "sets": {name: len(t) for name, t in sets.items()},
        "machine": where,
        "rows": rows,
    }
    write(result)


if __name__ == "__main__":
    main()
