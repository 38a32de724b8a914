"""Is the last linear layer found by itself, in networks that nobody here has written?

    make evidence-heads PYTHON=…   # a Python with torch, torchvision, timm and transformers

Each network is built with random weights and looked at with four inputs. What was found is held
against the layer that a reader of its code would name, and W · features + b against the logits that
the user's own module returns. ReAct, which needs both, is fitted on 60 random inputs. Where logits
are no linear function of one layer's input, the right answer is a refusal; its text is kept.

`gap` is the largest difference in units of the largest logit: rounding in float32 is near 1e-7.
`gap_of_spread` is the same in units of the logits' standard deviation over the inputs, so that a
bias alone, or the wrong features, cannot pass. Writes result.json beside this file; exit status 1
if a head is wrong, or missed where that is not known.
"""

import argparse
import gc
import importlib.metadata
import json
import platform
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from libraries import check_installed
from networks import CLASSES, LENGTH, LIBRARIES, VOCABULARY, Candidate
from torch import Tensor, nn

from tulip_ood import detectors
from tulip_ood.errors import ModelError
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

FEW, FITTED = 4, 60
TOLERANCE, TOLERANCE_OF_SPREAD = 1e-5, 1e-3
LIVELY = 0.1  # standard deviation of parameters that begin at 0
GOOD = ("found", "rightly refused", "known limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names that are wanted")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    check_installed(LIBRARIES, "evidence-heads")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # random networks guess, and say so
    start = time.perf_counter()
    entries = []
    for library in LIBRARIES.values():
        for candidate in library():
            if options.only in f"{candidate.library} {candidate.name}":
                entries.append(examine(candidate))
                print(line(entries[-1]), flush=True)
                gc.collect()
    held = all(entry["outcome"] in GOOD for entry in entries)
    result = {"versions": versions(), "tolerance": TOLERANCE, "held": held, **summary(entries)}
    result["seconds"] = round(time.perf_counter() - start)
    result["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
    if not options.only:
        text = json.dumps({**result, "networks": entries}, indent=1, ensure_ascii=False)
        options.out.write_text(text + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if held else 1)


def examine(candidate: Candidate) -> dict[str, Any]:
    """One network: what is found, whether it is true, and whether it can be used."""
    torch.manual_seed(0)
    inputs = some_inputs(candidate)
    model = lively(candidate.build(), inputs)
    labels = torch.arange(FITTED) % CLASSES
    few = first(inputs, FEW)
    network = Network(model, make_task("classification"))
    probe = network.probe(few)
    output = network.run(few)
    gap = gap_of_spread = None
    if probe.head_is_logits and output.features is not None and output.head is not None:
        theirs = logits_of(model, few).double()
        difference = (output.head.logits(output.features.double()) - theirs).abs().max()
        gap = rounded(difference / theirs.abs().max())
        gap_of_spread = rounded(difference / theirs.std(dim=0).max())
    entry = {
        "library": candidate.library,
        "network": candidate.name,
        "input": list(candidate.shape),
        "parameters": sum(p.numel() for p in model.parameters()),
        "head": probe.head,
        "expected_head": candidate.head,
        "head_is_logits": probe.head_is_logits,
        "features": None if output.features is None else output.features.shape[1],
        "gap": gap,
        "gap_of_spread": gap_of_spread,
        "logits_match": gap is not None
        and gap_of_spread is not None
        and gap <= TOLERANCE
        and gap_of_spread <= TOLERANCE_OF_SPREAD,
        "react": fitted("react", network, inputs, labels),
        "note": candidate.why,
    }
    return {**entry, "outcome": outcome(entry, candidate)}


def outcome(entry: dict[str, Any], candidate: Candidate) -> str:
    works = entry["react"] == "works"
    if entry["head_is_logits"] or works:
        right = entry["head"] == candidate.head and entry["logits_match"] and works
        return "found" if right else "WRONG"
    if candidate.head is None:
        return "rightly refused"
    return "known limit" if candidate.limit else "MISSED"


def rounded(value: Tensor) -> float:
    return float(f"{float(value):.2g}")


def some_inputs(candidate: Candidate) -> Any:
    if candidate.shape == (LENGTH,):
        return {"input_ids": torch.randint(2, VOCABULARY, (FITTED, LENGTH))}
    return torch.randn(FITTED, *candidate.shape)


def first(inputs: Any, n: int) -> Any:
    return {k: v[:n] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:n]


@torch.no_grad()
def lively(model: nn.Module, inputs: Any) -> nn.Module:
    """Random weights whose logits depend on the input, as those of a trained network do.

    Biases, last layers and layer scales that begin (almost) at 0 would make the logits the same
    for every input and any W · features + b right; so would BatchNorms that have seen no data.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point() and float(parameter.abs().max()) < 1e-3:
            parameter.normal_(std=LIVELY)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None  # the mean of what is seen
    if norms:
        logits_of(model.train(), first(inputs, 16))
    return model.eval()


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """As the user calls it."""
    returned = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    found: Tensor = getattr(returned, "logits", returned)
    return found


def fitted(name: str, network: Network, inputs: Any, labels: Tensor) -> str:
    """ "works", or what the detector says instead."""
    try:
        detector = detectors.make(name, network).fit([(inputs, labels)])
    except ModelError as error:
        return f"{type(error).__name__}: {error}"
    scores = detector.score(first(inputs, FEW))
    return "works" if bool(scores.isfinite().all()) else "scores are not finite"


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    outcomes = [entry["outcome"] for entry in entries]
    gaps = [entry["gap"] for entry in entries if entry["gap"] is not None]
    return {
        "networks_seen": len(entries),
        "outcomes": {kind: outcomes.count(kind) for kind in sorted({*GOOD, *outcomes})},
        "largest_gap": max(gaps, default=None),
    }


def line(entry: dict[str, Any]) -> str:
    """A row of the table that is printed."""
    name = f"{entry['library']} {entry['network']}"
    found = entry["head_is_logits"]
    layer, features = (entry["head"], str(entry["features"])) if found else ("–", "–")
    gaps = f"{entry['gap']:.0e} {entry['gap_of_spread']:.0e}" if found else "    –     –"
    end = "react works" if entry["react"] == "works" else f"react refused: {entry['note']}"
    return f"{name:50} {layer:20} {features:>5} {gaps}  {entry['outcome']:16} {end}"


def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("torch", *LIBRARIES)}
    return {"python": platform.python_version(), **found}


if __name__ == "__main__":
    main()
