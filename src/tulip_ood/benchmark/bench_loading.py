"""From the folder of a benchmark to its runs, with every number: no network is needed."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.benchmark.cells import TRACKS
from tulip_ood.benchmark.collecting import summarise
from tulip_ood.benchmark.contest import YARDSTICK
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet, Run, ShiftedResult
from tulip_ood.data.protocol import protocol_of
from tulip_ood.detectors.decision import Threshold
from tulip_ood.detectors.registry import METHODS
from tulip_ood.wording import counted

__all__ = ["load_benchmark"]


def load_benchmark(folder: str | os.PathLike[str]) -> Benchmark:
    """Everything that is finished in a benchmark's folder.

    Args:
        folder: What `bench` wrote to.

    Example:
        >>> load_benchmark("/no/such/folder")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: /no/such/folder holds no benchmark: bench.json: there is \
none in it. Expected a folder of `tulip bench --out`
    """
    place = BenchFolder(Path(folder))
    about = place.about()
    cells = place.cells()
    skipped = {
        f"{cell['method']} ({cell['track']})": cell["skipped"]
        for cell in cells.values()
        if "skipped" in cell
    }
    fitted = {key: cell for key, cell in cells.items() if "threshold" in cell}
    columns = _columns(place, about["sets"], fitted)
    unreadable: dict[str, int] = {}
    runs = []
    for key, cell in fitted.items():
        own = columns[key]
        if set(own) != set(about["sets"]):
            lacking = ", ".join(sorted(set(about["sets"]) - set(own)))
            why = cell.get("failed") or f"not finished: {lacking} left"
            skipped[f"{cell['method']} ({cell['track']})"] = why
            continue
        for role, values in own.items():
            unreadable[role] = int(values["score"].isnan().sum())
        runs.append(_run(about, cell, own))
    runs += [_also_on_train(run) for run in runs if run.method == YARDSTICK and _trained(runs)]
    environments = {str(sorted(c["versions"].items())): c["versions"] for c in fitted.values()}
    return Benchmark(
        about["identity"]["id_set"],
        tuple(sorted(runs, key=_order)),
        {
            each["name"]: _set(each, unreadable.get(role, 0))
            for role, each in _in_protocols_order(about)
        },
        about["identity"]["limit"],
        skipped,
        {"versions": list(environments.values())},
        {role: _set(each, 0) for role, each in sorted(about.get("fitted_on", {}).items())},
    )


def _set(each: Mapping[str, Any], unreadable: int) -> BenchmarkSet:
    return BenchmarkSet(
        each["name"],
        each["group"],
        each["n"] - unreadable,
        each["protocol_n"],
        _stand_in(each, unreadable),
    )


def _in_protocols_order(about: Mapping[str, Any]) -> list[tuple[str, Any]]:
    roles = protocol_of(about["identity"]["id_set"]).roles
    return sorted(about["sets"].items(), key=lambda item: roles.index(item[0]))


def _columns(
    place: BenchFolder, sets: Mapping[str, Any], cells: Mapping[str, Any]
) -> dict[str, dict[str, dict[str, Tensor]]]:
    """cell → set → column → all rows, for sets that the cell has scored wholly."""
    found: dict[str, dict[str, dict[str, Tensor]]] = {key: {} for key in cells}
    for network in sorted({cell["network"] for cell in cells.values()}):
        mine = [key for key, cell in cells.items() if cell["network"] == network]
        for role, each in sets.items():
            for key, pieces in place.scores(network, role, mine).items():
                if not pieces:
                    continue
                names = next(iter(pieces.values()))
                ordered = [pieces[first] for first in sorted(pieces)]
                whole = {name: torch.cat([p[name] for p in ordered]) for name in names}
                if len(whole["score"]) == each["n"]:
                    found[key][role] = whole
    return found


def _run(about: Mapping[str, Any], cell: Mapping[str, Any], own: Mapping[str, Any]) -> Run:
    sets = about["sets"]
    readable = {r: {n: t[~v["score"].isnan()] for n, t in v.items()} for r, v in own.items()}
    names = {role: each["name"] for role, each in sets.items()}
    outside = {
        names[role]: values["score"]
        for role, values in readable.items()
        if sets[role]["group"] in ("near", "far")
    }
    threshold = Threshold(**cell["threshold"])
    return Run(
        id_set=about["identity"]["id_set"],
        network=cell["network"],
        training_seed=cell["training_seed"],
        noise_seed=cell["noise_seed"],
        method=cell["method"],
        track=cell["track"],
        n_val=cell["n_val"],
        n_train=cell["n_train"],
        parameters=cell["parameters"],
        result=summarise(cell["method"], readable["test"], outside, threshold),
        shifted={
            names[role]: ShiftedResult(values["score"], values["wrong"])
            for role, values in readable.items()
            if sets[role]["group"] == "shifted"
        },
        tune=cell.get("tune", "none"),
        architecture=cell.get("architecture", ""),
        findings=tuple(cell.get("findings", ())),
    )


def _order(run: Run) -> tuple[Any, ...]:
    """Networks, seeds, tracks, then methods as the registry lists them."""
    first = re.split(r"[\[+&]", run.method)[0]
    place = list(METHODS).index(first) if first in METHODS else len(METHODS)
    return run.network, run.noise_seed, TRACKS.index(run.track), place, run.method


def _trained(runs: list[Run]) -> bool:
    return any(run.track == "train" for run in runs)


def _also_on_train(run: Run) -> Run:
    """Entropy learns nothing: it is the yardstick on both tracks."""
    return replace(run, track="train")


def _stand_in(each: Mapping[str, Any], unreadable: int) -> str | None:
    notes = [note for note in (each["stand_in"], *each["notes"]) if note]
    if unreadable:
        notes.append(f"{counted(unreadable, 'image')} left out because of damage")
    return "; ".join(notes) or None
