"""Which architectures does TULiP work on: fitting, scoring, the scopes, the export?

    make evidence-architectures PYTHON=…   # a Python with torchvision, timm, transformers, onnx…

Networks of three libraries with random weights and 10 outputs (those of `benchmarks/heads`), made
lively so that their answers depend on the input. On each, TULiP with M = 2 and J = 1 is fitted on
48 random inputs with every scope and scores them, alone and together. Then the detector with the
scope `last-block` (where a network has none: `head`) is exported to ONNX, run in onnxruntime, and
compared with the detector on 97 inputs: 49 that every export is tried with, and 48 of its own.

`gap` is the largest difference of a score, in parts of the validation scores' range (1e-4 is
allowed). A refusal is kept with its text. Writes result.json beside this file; exit status 1 if
anything fails in a way that is not a refusal of ours.
"""

import argparse
import gc
import importlib.util
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "heads"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from libraries import check_installed
from networks import LENGTH, LIBRARIES, VOCABULARY, Candidate
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import TulipError
from tulip_ood.export.header import _versions

HEADS = Path(__file__).resolve().parents[1] / "heads" / "run.py"
FITTED, CHECKED = 48, 48
SCOPES = ("head", "last-block", "last-stage", "all")
STRENGTH = 2.0  # standard deviation of the logits of a trained network, about
CHOSEN = {
    "transformers": "ViTForImageClassification Dinov2ForImageClassification "
    "SwinForImageClassification ConvNextForImageClassification ResNetForImageClassification "
    "BertForSequenceClassification RobertaForSequenceClassification "
    "DistilBertForSequenceClassification GPT2ForSequenceClassification",
    "timm": "convnext_atto poolformer_s12 mobilevit_xxs repvgg_a0 vit_tiny_patch16_224 "
    "mobilenetv3_small_050",
    "torchvision": "resnet18 resnet50 densenet121 mobilenet_v2 mobilenet_v3_large efficientnet_b0 "
    "regnet_y_400mf swin_t convnext_tiny shufflenet_v2_x1_0 squeezenet1_1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names; others stay")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    check_installed([*LIBRARIES, "onnx", "onnxscript", "onnxruntime"], "evidence-architectures")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # random networks guess, and say so
    entries = []
    for candidate in chosen():
        name = f"{candidate.library} {candidate.name}"
        if any(part in name for part in options.only):
            entries.append(examine(candidate))
            print(line(entries[-1]), flush=True)
            gc.collect()
            write(options.out, entries[-1])
    told = [s for e in entries for s in (*e["scopes"].values(), e["export"]) if not s["works"]]
    sys.exit(0 if all(s["refused"] for s in told) else 1)


def write(path: Path, new: dict[str, Any]) -> None:
    """The result with one network more, or measured again."""
    known = json.loads(path.read_text())["networks"] if path.exists() else []
    found = {(e["library"], e["network"]): e for e in [*known, new]}
    order = [(library, name) for library, names in CHOSEN.items() for name in names.split()]
    entries = [found[key] for key in order if key in found]
    result = {
        "versions": {**_versions(), "machine": platform.machine()},
        "n_samples": 2,
        "inputs_fitted": FITTED,
        "networks_seen": len(entries),
        "fitted_and_scored": sum(all(s["works"] for s in e["scopes"].values()) for e in entries),
        "exported": sum(entry["export"]["works"] for entry in entries),
        "seconds": round(sum(entry["seconds"] for entry in entries)),
        "networks": entries,
    }
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def chosen() -> Iterator[Candidate]:
    for library, names in CHOSEN.items():
        wanted = names.split()
        yield from (c for c in LIBRARIES[library]() if c.name in wanted)


def examine(candidate: Candidate) -> dict[str, Any]:
    """One network: every scope, then the export."""
    torch.manual_seed(0)
    start, heads = time.process_time(), _heads()
    inputs, others = some_inputs(candidate, FITTED), some_inputs(candidate, CHECKED)
    model = heads.lively(widened(candidate.build()), inputs)
    strengthen(model, inputs, candidate)
    # A network that is always right: with random labels J* has no end, and rounding shows.
    logits = heads.logits_of(model, inputs)
    labels = logits.argmax(dim=1)
    if len(labels.unique()) == 1:  # it always gives one answer; no head to strengthen
        labels = (logits - logits.mean(dim=0)).argmax(dim=1)
    scopes: dict[str, Any] = {}
    exported: Any = None
    for scope in SCOPES:
        detector = tulip_ood.Tulip(model, scope=scope, n_samples=2, j=1.0)
        scopes[scope] = attempted(lambda d=detector: fitted_and_scored(d, inputs, labels))
        if scope == "last-block" or (scope == "head" and scopes[scope]["works"]):
            exported = detector if scopes[scope]["works"] else exported
    return {
        "library": candidate.library,
        "network": candidate.name,
        "input": list(candidate.shape),
        "parameters": sum(p.numel() for p in model.parameters()),
        "scopes": scopes,
        "export": attempted(lambda: export(exported, others)),
        "seconds": round(time.process_time() - start, 1),
    }


def _heads() -> Any:
    """The other script, for how it makes random networks lively."""
    spec = importlib.util.spec_from_file_location("heads_run", HEADS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def some_inputs(candidate: Candidate, n: int) -> Any:
    if candidate.shape == (LENGTH,):
        return {"input_ids": torch.randint(2, VOCABULARY, (n, LENGTH))}
    return torch.randn(n, *candidate.shape)


@torch.no_grad()
def widened(model: nn.Module) -> nn.Module:
    """Weights as large as keep the size of what goes through; transformers begin smaller.

    Otherwise nearly all inputs look alike, and what differs is lost in rounding. BatchNorm takes
    care of that by itself.
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return model
    for parameter in model.parameters():
        if parameter.ndim > 1:
            wanted = parameter[0].numel() ** -0.5
            parameter *= max(1.0, wanted / max(float(parameter.std()), 1e-6))
    return model


@torch.no_grad()
def strengthen(model: nn.Module, inputs: Any, candidate: Candidate) -> None:
    """Logits that vary as those of a trained network do; else all scores are one and the same."""
    if candidate.head is not None:
        layer = model.get_submodule(candidate.head)
        logits = _heads().logits_of(model, _heads().first(inputs, 32))
        layer.weight *= STRENGTH / float(logits.std(dim=0).mean())


def attempted(work: Any) -> dict[str, Any]:
    try:
        found = {"works": True, **work()}
    except TulipError as error:
        found = {"works": False, "refused": True, "text": " ".join(str(error).split())[:300]}
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        found = {"works": False, "refused": False, "text": text}
    return found


def fitted_and_scored(detector: tulip_ood.Tulip, inputs: Any, labels: Tensor) -> dict[str, Any]:
    detector.fit([(inputs, labels)], recipe="balanced")
    together: Tensor = detector.score(inputs)
    alone = detector.score(_heads().first(inputs, 1))
    perturbed = detector.engine.perturbation(detector._settings()).scales
    counts = {name: p.numel() for name, p in detector.network.parameters.items()}
    share = sum(counts[name] for name in perturbed) / sum(counts.values())
    apart = float((together[:1] - alone).abs().max()) / detector.calibration.spread
    assert bool(together.isfinite().all()), "scores are not finite"
    return {"perturbed": float(f"{share:.3g}"), "alone": float(f"{apart:.2g}")}


def export(detector: tulip_ood.Tulip | None, inputs: Any) -> dict[str, Any]:
    if detector is None:
        raise tulip_ood.TulipError("no detector could be fitted")
    with tempfile.TemporaryDirectory() as folder:
        written = tulip_ood.export(detector, f"{folder}/gate.onnx", check=[inputs])
    return {
        "scope": detector.scope,
        "gap": float(f"{written.parity.score:.2g}"),
        "megabytes": float(f"{written.megabytes:.3g}"),
        "cost": float(f"{written.plan.cost:.3g}"),
    }


def line(entry: dict[str, Any]) -> str:
    """A row of what is printed."""
    marks = " ".join(
        f"{scope} {one['perturbed'] if one['works'] else one['text'][:40]}"
        for scope, one in entry["scopes"].items()
    )
    end = entry["export"]
    told = f"gap {end['gap']:.0e}, {end['megabytes']} MB" if end["works"] else end["text"]
    return f"{entry['library']} {entry['network']}: {marks}; export: {told} ({entry['seconds']} s)"


if __name__ == "__main__":
    main()
