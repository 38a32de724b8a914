"""What `Auto` costs beside TULiP, in eager passes of the same network: one run, medians of turns.

    OMP_NUM_THREADS=2 python benchmarks/auto/cost.py --data IMAGES.npz --checkpoint FILE
    python benchmarks/auto/cost.py --data IMAGES.npz --checkpoint FILE --device cuda
    python benchmarks/auto/cost.py --resnet50 --device cuda

IMAGES.npz holds CIFAR-10's images [N, 32, 32, 3] as `x`, labels as `y`. Detectors are fitted on the
first 1,000, as a user would, and score others in turns: 100 on a CPU; on a GPU 1,024, in half
precision and in batches of 256. `--resnet50`: torchvision's, untrained, on 256 random images of 224
pixels with random labels; all parts of `Auto` are made to count, whatever they are worth there.
Adds to result-cost.json, or result-cost-cuda.json.
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
from torch import Tensor, nn

from tulip_ood import Auto, Tulip
from tulip_ood.models.spec import load_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine

SIX = ("tulip", "react", "knn", "nci", "fdbd", "ratio")
DETECTORS: dict[str, Callable[..., Any]] = {
    "tulip, balanced": Tulip,
    "auto, without inner stages": lambda model, **common: Auto(model, parts=SIX, **common),
    "auto": Auto,
    "auto, without noise": lambda model, **common: Auto(model, n_samples=0, **common),
}


def turn(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def of_images(file: Path, checkpoint: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The checkpoint's network, images and labels."""
    with np.load(file) as found:
        pixels = torch.from_numpy(found["x"][:2024]).permute(0, 3, 1, 2).float() / 255
        labels = torch.from_numpy(found["y"][:2024].astype(np.int64))
    return load_model(checkpoint).module.eval(), normalised(pixels), labels


def of_noise() -> tuple[nn.Module, Tensor, Tensor]:
    """A ResNet-50, and images of its size."""
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return resnet50().eval(), torch.randn(512, 3, 224, 224), torch.randint(1000, (512,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--resnet50", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", nargs="*", default=list(DETECTORS), help="some of them, TULiP first"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model, images, labels = (
        of_noise() if given.resnet50 else of_images(given.data, given.checkpoint)
    )
    on_gpu = given.device == "cuda"
    model.to(given.device)
    learned, size = (256, 256) if given.resnet50 else (1000, 1024 if on_gpu else 100)
    val = [(images[:learned], labels[:learned])]
    some = images[learned : learned + size].to(given.device)
    common: dict[str, Any] = {"precision": "half", "batch_size": 256} if on_gpu else {}

    def eager() -> Tensor:
        with torch.no_grad():
            return torch.cat([model(part) for part in some.split(256)])

    eager()
    Tulip(model, **common).fit(val, recipe="balanced")  # whoever is first waits for libraries
    rows: dict[str, Any] = {}
    fitted = {}
    for name in given.only:
        detector = DETECTORS[name](model, **common)
        recipe = {"recipe": "balanced"} if isinstance(detector, Tulip) else {}
        seconds = turn(lambda d=detector, r=recipe: d.fit(val, **r))  # type: ignore[misc]
        if given.resnet50 and isinstance(detector, Auto):
            detector._weights = dict.fromkeys(detector._weights, 1.0)
            detector._mirrors = True
        fitted[name] = detector
        rows[name] = {
            "seconds of a fit": round(seconds, 2),
            "passes of an input": detector._needs_to_score().passes,
        }
        print(name, rows[name], flush=True)
    works: dict[str, Callable[[], Any]] = {"eager": eager}
    works |= {name: lambda d=d: d.score(some) for name, d in fitted.items()}  # type: ignore[misc]
    for work in [*works.values()] * (8 if on_gpu else 1):  # graphs are made and recorded
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(given.rounds):
        for name, work in works.items():
            times[name].append(turn(lambda w=work: (w(), synchronize(on_gpu))))  # type: ignore[misc]
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, row in rows.items():
        row["score, ms"] = round(1000 * middle[name], 1)
        row["score, eager passes"] = round(middle[name] / middle["eager"], 2)
        row["score, beside tulip"] = round(middle[name] / middle["tulip, balanced"], 3)
        plain = rows["tulip, balanced"]["seconds of a fit"]
        row["fit, calibrations"] = round(row["seconds of a fit"] / plain, 1)
    out = given.out or Path(__file__).parent / f"result-cost{'-cuda' if on_gpu else ''}.json"
    device = {"device": torch.cuda.get_device_name()} if on_gpu else {}
    found = json.loads(out.read_text()) if out.exists() else {}
    found["machine"] = {**machine(threads=torch.get_num_threads()), **device}
    network = "resnet50" if given.resnet50 else "cifar10 resnet18"
    found[network] = {
        "images": len(some),
        "eager, ms": round(1000 * middle["eager"], 1),
        "rows": rows,
    }
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found[network], indent=1))


if __name__ == "__main__":
    main()
