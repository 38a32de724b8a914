"""What every candidate part of `Auto` says of every image of a task: scores, not averages.

    python benchmarks/auto/study.py cifar10 --data FOLDER --network FILE --out scores.npz

`methods`: detectors of the library, fitted on all validation images, which `judge.py` reads. With
`--candidates`, columns named
`SHAPING/SCORE/λ/J/ε`: TULiP's score by hand at fixed constants (λ in balanced ones), Θ_XX learned
from one half of the validation images; also neighbours, and the ratio log((Θ + Θ_XX)/D). These are
there for the other half and for each kind of pseudo-OOD made from it as well, so that `kinds.py`
can see which kind predicts real OOD. Needs a GPU (half a minute a network).
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import CLASSES, LAST, PARTS, as_lites_want, lite, normalised, tuned
from networks import make as make_network
from safetensors.torch import load_file
from tasks import Task, digits, openood, packed
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from tulip_ood.detectors.pseudo import make_kinds
from tulip_ood.detectors.registry import make
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import TulipError
from tulip_ood.models.spec import load_model
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.numerics import shaping
from tulip_ood.numerics.scores import energy, entropy, gen, mean_probability
from tulip_ood.shifts.kinds import IMAGES

STRENGTHS, BALANCES, EPSILONS = (0.5, 1.0, 2.0, 3.0), (0.5, 1.0), (0.005, 0.01)
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "ent": lambda samples: entropy(mean_probability(samples)),
    "gen": lambda samples: gen(mean_probability(samples)),
    "ebo": energy,
}
M, NEIGHBOUR, KIND = 10, 5, 250
METHODS = (
    "msp", "ent", "gen", "ebo", "mls", "react", "scale", "ash-s", "adascale-a", "knn", "nci",
    "fdbd", "noise",
    "tulip[recipe=balanced]", "tulip", "tulip+scale", "auto", "auto[n_samples=0]",
)  # fmt: skip

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # ImageNet's networks, and their pixels
SETS = {  # near and far
    "leaves": (("other-crops",), ("textures", "flowers", "xrays", "photographs")),
    "signs": (("other-signs", "belgian-signs"), ("food", "blood", "cartoons", "aerial")),
    "scenes": (("other-scenes", "fields"), ("streets", "faces", "emoji", "clothes")),
    "birds": (("other-birds", "monkeys"), ("paintings", "spectra", "brains", "hands")),
    "butterflies": (
        ("other-butterflies", "insects"),
        ("anime", "lesions", "waste", "captchas"),
    ),
    "cards": (("other-cards", "tiles"), ("retinas", "tissue", "steel", "weather")),
    "simpsons": (
        ("other-simpsons", "tom-and-jerry"),
        ("cars", "sketches", "ultrasound", "banknotes"),
    ),
    "instruments": (
        ("other-instruments", "household"),
        ("galaxies", "solar-cells", "logos", "sea-mammals"),
    ),
    "pets": (
        ("other-pets", "wild-animals"),
        ("vehicles", "groceries", "clouds", "magnetic-tiles"),
    ),
    "capitals": (
        ("other-capitals", "numerals"),
        ("reef-fish", "fruit", "stylised", "portraits"),
    ),
    "sports": (("other-sports", "actions"), ("rooms", "coins", "pills", "charts")),
    "plankton": (
        ("other-plankton", "pollen"),
        ("receipts", "circuit-boards", "eyes", "endoscopy"),
    ),
    "dishes": (("other-dishes", "produce"), ("gems", "signatures", "cracks", "fantasy")),
    "hiragana": (
        ("other-hiragana", "baybayin"),
        ("posters", "retina-sections", "fabrics", "hieroglyphs"),
    ),
}


def task_of(name: str, folder: Path, network: str, limit: int, known: Task | None = None) -> Task:
    """A task with one network; its images from `known`, the same task with another, if given."""
    model = network_of(name, network)
    if known is not None:
        return replace(known, model=model)
    if name in ("cifar10", "cifar100"):
        return openood(name, folder, network, limit, model)
    if name == "vit":
        return openood("cifar10", folder, str(folder / "cifar10.safetensors"), limit, model)
    if name == "digits":
        return digits(model, folder, limit)
    if name in CLASSES:
        near, far = SETS[name]
        sets = dict.fromkeys((*near, *far), limit)
        lites = any(key.startswith(LAST) for key in model.state_dict())
        prepare = as_lites_want if lites else normalised
        return packed(name, model, folder, name, sets, near, PARTS, prepare)

    def resized(x: Tensor) -> Tensor:
        if x.shape[-1] != SIDES[name]:
            size = (SIDES[name], SIDES[name])
            x = interpolate(x, size=size, mode="bicubic", antialias=True).clamp(0, 1)
        return as_lites_want(x)

    sets = {"leaves": 400, "flowers": 600, "textures": 600, "xrays": 400}
    near = ("leaves", "flowers")
    own = folder / "imagenet"  # its sets are called as those of the leaves are, and are larger
    return packed(name, model, own, "imagenet", sets, near, (0.0, 0.5), resized)


def network_of(name: str, file: str) -> nn.Module:
    """A trained network of a task."""
    if name in ("cifar10", "cifar100"):
        return load_model(file).module
    if name in SIDES:
        return filled(lite(name), torch.load(file, map_location="cpu", weights_only=True))
    weights = load_file(file)
    tuned_on = any(key.startswith(LAST) for key in weights)
    return filled(tuned(name) if tuned_on else make_network(name), weights)


def filled(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    model.load_state_dict(weights)
    return model.eval()


@dataclass(frozen=True)
class Features:
    """Penultimate features of all passes [M + 2, N, d] by source, and the heads of the passes."""

    of: dict[str, Tensor]
    weight: Tensor
    bias: Tensor

    def logits(self, name: str, shape: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.einsum("mnd,mod->mno", shape(self.of[name]), self.weight) + self.bias[:, None]


def features(detector: Tulip, sources: dict[str, Rows | Inputs], epsilon: float) -> Features:
    settings = detector._settings().with_(epsilon=epsilon, n_samples=M)
    perturbation = detector._make_perturbation(settings)
    of: dict[str, Tensor] = {}
    for name, source in sources.items():
        needs = Needs(settings, noisy_features=True)
        made = run_passes(perturbation, source, batch_size=detector.engine.batch_size, needs=needs)
        assert made.noisy_features is not None
        assert made.drift_features is not None
        each = (made.need_features()[None], made.noisy_features, made.drift_features[None])
        of[name], heads = torch.cat(each).to(detector.network.device), made.heads
    device = detector.network.device
    weight, bias = torch.stack([h.weight for h in heads]), torch.stack([h.bias for h in heads])
    return Features(of, weight.to(device), bias.to(device))


def shapings(learned: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield "none", lambda f: f
    if bool((learned < 0).any()):  # shaping is for what a ReLU lets through
        return
    clip = float(torch.quantile(learned[0].flatten()[::7], 0.9))
    yield "react", lambda f: shaping.react(f, clip)
    for percentile in (65.0, 75.0, 85.0, 90.0):

        def scale(f: Tensor, p: float = percentile) -> Tensor:
            return shaping.scale(f.flatten(0, 1), p).view_as(f)

        yield f"scale:{percentile:.0f}", scale


def nearest(f: Tensor, bank: Tensor, k: int = NEIGHBOUR) -> Tensor:
    distances = torch.cdist(normalize(f, dim=-1), normalize(bank, dim=-1))
    return distances.topk(k, largest=False).values[..., -1]


def by_hand(
    detector: Tulip, sources: dict[str, Rows | Inputs]
) -> Iterator[tuple[str, str, Tensor]]:
    """(column, source, scores), for every source but the images that are learned from."""
    names = [name for name in sources if name != "learned"]
    for epsilon in EPSILONS:
        made = features(detector, sources, epsilon)
        bank = made.of["learned"]
        for name in names:
            f = made.of[name]
            noisy = [nearest(f[i], bank[i]) for i in range(1, M + 1, 3)]
            yield f"noisy-knn///{epsilon}", name, torch.stack(noisy).mean(0)
            if epsilon == EPSILONS[0]:
                yield "knn", name, nearest(f[0], bank[0])
                yield "norm", name, -f[0].norm(dim=-1)
        for shape_name, shape in shapings(bank):
            z = made.logits("learned", shape)
            trace_xx = ((z[1:-1] - z[0]) ** 2).sum(-1).mean()
            balanced = 2 * trace_xx / (z[-1] - z[0]).norm(dim=-1).mean()
            for name in names:
                z = made.logits(name, shape).double()
                trace = ((z[1:-1] - z[0]) ** 2).sum(-1).mean(0)
                drift = (z[-1] - z[0]).norm(dim=-1)
                ratio = ((trace + trace_xx) / drift.clamp_min(1e-9)).log()
                yield f"{shape_name}/ratio///{epsilon}", name, ratio
                if epsilon == EPSILONS[0]:
                    for score, function in SCORES.items():
                        yield f"{shape_name}/{score}", name, function(z[:1])
                for balance in BALANCES:
                    bound = (trace + trace_xx - balance * balanced * drift).clamp_min(0)
                    stretch = (bound / trace.clamp_min(1e-30)).sqrt()[None, :, None]
                    for strength in STRENGTHS:
                        moved = z[:1] + strength * stretch * (z[1:-1] - z[:1])
                        for score, function in SCORES.items():
                            column = f"{shape_name}/{score}/{balance}/{strength}/{epsilon}"
                            yield column, name, function(moved)


def fitted(
    task: Task, batch: int, methods: Sequence[str]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Scores of the library's methods by source, and what fitting them cost."""
    found: dict[str, dict[str, Tensor]] = {}
    about: dict[str, Any] = {}
    sources = {"test": task.test[0], "shifted": task.shifted[0], **task.sets}
    for method in methods:
        name, _, given = method.partition("[")
        settings: dict[str, Any] = dict([given[:-1].split("=")]) if given else {}
        own = {"n_samples": int(settings.pop("n_samples"))} if "n_samples" in settings else {}
        passed, began = [0], time.perf_counter()

        def count(done: int, total: int, passed: list[int] = passed) -> None:
            passed[0] = done

        try:
            detector = make(name, task.model, batch_size=batch, **own)
            detector.fit([task.val], progress=count, **settings)
            took = time.perf_counter() - began
            found[method] = {n: detector.score(x).cpu() for n, x in sources.items()}
        except TulipError as error:
            about[method] = {"error": str(error)}
            continue
        print(f"{task.name} {method}: fitted in {took:.1f} s", flush=True)
        lines = [str(finding) for finding in detector._findings]
        about[method] = {"seconds": took, "passes": passed[0], "findings": lines}
        if hasattr(detector, "_report_lines"):
            about[method]["report"] = detector._report_lines()
    return found, about


def study(
    task: Task, device: str, batch: int, methods: Sequence[str], candidates: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    task.model.to(device).eval()
    found, about = fitted(task, batch, methods)
    detector = Tulip(task.model, batch_size=batch).fit([task.val], recipe="balanced")
    rows = collect_rows([task.val], seed=0)
    half = len(rows) // 2
    held_out = rows.take(range(half, len(rows)))
    sources: dict[str, Rows | Inputs] = {"learned": rows.take(range(half)), "held out": held_out}
    made: dict[str, Rows] = {}
    if candidates:
        kinds = make_kinds(held_out, list(IMAGES), KIND, 0)
        made |= {f"kind {name}": part for name, part in kinds.items()}
    sources |= made
    sources |= {"test": task.test[0], "shifted": task.shifted[0], **task.sets}
    columns: dict[str, dict[str, Tensor]] = {}
    with torch.no_grad():
        for column, name, values in by_hand(detector, sources) if candidates else ():
            columns.setdefault(column, {})[name] = values.double()
    arrays: dict[str, Any] = {}
    order = [name for name in sources if name != "learned"]
    sizes = [len(sources[name]) for name in order]
    at = torch.tensor([0.16, 0.5, 0.84], dtype=torch.float64, device=device)
    table = []
    for by_source in columns.values():
        low, middle, high = torch.quantile(by_source["held out"], at)
        values = torch.cat([by_source[name] for name in order])
        table.append(((values - middle) / ((high - low) / 2).clamp_min(1e-12)).clamp(-6e4, 6e4))
    if table:
        arrays["table"] = torch.stack(table).to(torch.float16).cpu().numpy()
    fitted_sources = ["test", "shifted", *task.sets]
    arrays["methods"] = np.stack(
        [np.concatenate([found[m][n].numpy() for n in fitted_sources]) for m in found]
    )
    answers = {}
    with torch.no_grad():
        inside = {"held out": held_out, "test": task.test[0], "shifted": task.shifted[0]}
        inside |= made
        for name, source in inside.items():
            needs = Needs(detector._settings().with_(n_samples=0))
            base = run_passes(
                detector._make_perturbation(needs.settings), source, batch_size=batch, needs=needs
            ).base
            answers[name] = base.argmax(-1).cpu()
    assert held_out.labels is not None
    truth = {"held out": held_out.labels, "test": task.test[1], "shifted": task.shifted[1]}
    truth |= {name: part.labels for name, part in made.items() if part.labels is not None}
    for name, labels in truth.items():
        arrays[f"right {name}"] = (answers[name] == labels.cpu()).numpy()
    header = {
        "task": task.name, "columns": list(columns), "sources": order, "sizes": sizes,
        "methods": list(found), "method sources": fitted_sources, "about": about,
        "near": list(task.near), "far": [name for name in task.sets if name not in task.near],
        "accuracy": float((answers["test"] == task.test[1]).float().mean()),
    }  # fmt: skip
    return arrays, header


def asking(description: str | None, several: bool = False) -> argparse.ArgumentParser:
    """For a task, a network or several, and where to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", required=True, nargs="+" if several else None)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--outside", type=int, help="images of an OOD set; as many as there are")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main() -> None:
    parser = asking(__doc__)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--candidates", action="store_true", help="scores by hand as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    task = task_of(given.task, given.data, given.network, given.limit)
    arrays, header = study(task, given.device, given.batch, given.methods, given.candidates)
    header["network"] = Path(given.network).stem
    np.savez_compressed(given.out, header=json.dumps(header), **arrays)
    took = time.perf_counter() - began
    print(f"{given.task} {header['network']}: {100 * header['accuracy']:.2f} %, {took:.0f} s")


if __name__ == "__main__":
    main()
