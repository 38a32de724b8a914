"""How TULiP's cost grows with M, parameters, classes and images, and what a GPU does meanwhile.

    PYTHONPATH=src python3 benchmarks/speed/growth.py                     # under 2 minutes of a GPU
    PYTHONPATH=src python3 benchmarks/speed/growth.py --sections classes  # one part of it

As run.py measures: an eager pass (energy; TF32 on a GPU), the M + 2 passes with their outputs left
on the device, and the whole of `detector.score`, taking turns in one process; medians. `kernels`
is the time that a GPU spends in each kind of kernel during one call of `score`, by PyTorch's
profiler; what is left of the wall-clock time is `idle`.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine
from run import Row, attempt, eager, make_detector, make_network, make_round, taking_turns

BATCH = 256
CLASSES = (10, 100, 1000, 21_000)
IMAGES = (1, 4, 16, 64, 256, 1024)
# The first kind with a part of its name in a kernel's; convolutions are "implicit gemm" in cuDNN.
KINDS = {
    "convolutions": ("fprop", "conv", "xmma", "implicit"),
    "matrix products": ("gemm", "gemv", "cutlass", "nvjet"),
    "copies and casts": ("memcpy", "memset", "copy", "catarray"),
    "pooling": ("pool",),
    "sums and softmax": ("reduce", "softmax"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--networks", nargs=3, default=["resnet18", "resnet50", "resnet101"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--small", action="store_true", help="few classes and images, to try it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(threads=torch.get_num_threads()), "rows": []}
    if options.device != "cpu":
        result["machine"]["device"] = torch.cuda.get_device_name()
    result["command"] = " ".join(["benchmarks/speed/growth.py", *sys.argv[1:]])
    out = options.out or Path(__file__).with_name(f"growth-{options.device}.json")
    began = time.perf_counter()
    for section in options.sections:
        for work in SECTIONS[section](options):
            row = {"section": section, **attempt(work)}
            row["seconds"] = round(time.perf_counter() - began, 1)
            result["rows"].append(row)
            out.write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(row), flush=True)


Work = Callable[[], dict[str, Any]]


def by_samples(options: argparse.Namespace) -> Iterator[Work]:
    """M, all parameters: one network."""
    name = options.networks[1]
    model, shape = make_network(name, options.device)
    x = torch.randn(options.batch, *shape).to(options.device)
    network = None

    def one(samples: int) -> dict[str, Any]:
        nonlocal network
        row = _row(options, name, "all", samples, options.batch)
        detector = make_detector(model, row, options.device, "", network)
        network = detector.network
        return _timed(model, detector, row, x, options)

    for samples in (2, 4, 10, 20):
        yield lambda samples=samples: one(samples)


def by_parameters(options: argparse.Namespace) -> Iterator[Work]:
    """The network, all parameters, M = 10."""
    for name in options.networks:
        yield lambda name=name: _fresh(options, name, "all", 1000)


def by_classes(options: argparse.Namespace) -> Iterator[Work]:
    """The number of outputs, last stage, M = 10."""
    for classes in CLASSES[:2] if options.small else CLASSES:
        yield lambda classes=classes: _fresh(options, options.networks[1], "last-stage", classes)


def by_images(options: argparse.Namespace) -> Iterator[Work]:
    """Images in one call, last stage, M = 10: one detector."""
    name = options.networks[1]
    model, shape = make_network(name, options.device)
    counts = IMAGES[:2] if options.small else IMAGES
    row = _row(options, name, "last-stage", 10, counts[-1])
    made: list[Any] = []

    def one(count: int) -> dict[str, Any]:
        if not made:
            made.append(make_detector(model, row, options.device, ""))
        x = torch.randn(count, *shape).to(options.device)
        return _timed(model, made[0], row, x, options)

    for count in counts:
        yield lambda count=count: one(count)


def kernels(options: argparse.Namespace) -> Iterator[Work]:
    """What the time of a call goes into."""
    for scope in ("all", "last-stage"):
        yield lambda scope=scope: _kernels(options, scope)


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Work]]] = {
    "samples": by_samples,
    "parameters": by_parameters,
    "classes": by_classes,
    "images": by_images,
    "kernels": kernels,
}


def _row(options: argparse.Namespace, name: str, scope: str, samples: int, batch: int) -> Row:
    half = "float32" if options.device == "cpu" else "half"
    return Row("growth", name, scope, samples, batch, 0.0, half)


def _fresh(options: argparse.Namespace, name: str, scope: str, classes: int) -> dict[str, Any]:
    model, shape = make_network(name, options.device, classes)
    x = torch.randn(options.batch, *shape).to(options.device)
    row = _row(options, name, scope, 10, options.batch)
    return _timed(model, make_detector(model, row, options.device, ""), row, x, options)


def _timed(
    model: Any, detector: Any, row: Row, x: torch.Tensor, options: argparse.Namespace
) -> dict[str, Any]:
    runs = {
        "eager": eager(model, x, tf32=True),
        "passes": make_round(detector, x),
        "score": lambda: detector.score(x),
    }
    ms = taking_turns(runs, options.rounds, 1 if options.device == "cpu" else 3)
    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    return {
        "network": row.network,
        "parameters": sum(p.numel() for p in model.parameters()),
        "scope": row.scope,
        "samples": row.samples,
        "classes": classes,
        "images": len(x),
        "ms": ms,
        "passes_ratio": round(ms["passes"] / ms["eager"], 3),
        "score_ratio": round(ms["score"] / ms["eager"], 3),
    }


def _kernels(options: argparse.Namespace, scope: str) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    name = options.networks[1]
    model, shape = make_network(name, options.device)
    x = torch.randn(options.batch, *shape).to(options.device)
    detector = make_detector(
        model, _row(options, name, scope, 10, options.batch), options.device, ""
    )
    wall = taking_turns({"score": lambda: detector.score(x)}, options.rounds)["score"]
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            detector.score(x)
        torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    for event in seen.key_averages():
        taken[event.key] += event.self_device_time_total / 3000
    kinds: Counter[str] = Counter()
    for kernel, ms in taken.items():
        parts = ((kind, part) for kind, names in KINDS.items() for part in names)
        found = (kind for kind, part in parts if part in kernel.lower())
        kinds[next(found, "element by element")] += ms
    return {
        "network": name,
        "scope": scope,
        "images": options.batch,
        "score_ms": wall,
        "kinds_ms": {kind: round(ms, 3) for kind, ms in kinds.most_common()},
        "idle_ms": round(wall - sum(kinds.values()), 3),
        "longest_ms": {kernel[:90]: round(ms, 3) for kernel, ms in taken.most_common(8)},
    }


if __name__ == "__main__":
    main()
