"""`tulip bench` without the command line's libraries: for machines with torch and numpy alone.

    PYTHONPATH=src python benchmarks/openood/run.py cifar10 --data ROOT --checkpoint A B C \
        --methods "$(cat benchmarks/openood/methods.txt)" --track val train --out DIR

Writes the folder that `tulip bench table DIR` makes its tables from.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open

from tulip_ood.benchmark.bench import bench
from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.data.root import Root
from tulip_ood.models.spec import load_model


def load(path: str, device: str) -> BenchNetwork:
    loaded = load_model(path)
    assert loaded.preprocess is not None
    with safe_open(path, framework="pt") as file:
        seed = (file.metadata() or {}).get("seed")
    name = Path(path).stem
    module = loaded.module.to(device)
    return BenchNetwork(name, module, loaded.preprocess, None if seed is None else int(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("id_set")
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint", nargs="+", required=True)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--track", nargs="+", default=["val"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--tune", default="ood")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--cache-limit", type=float, default=0.0, help="GiB")
    parser.add_argument("--only", type=int, help="run one network; the others are its ensemble")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began, last = time.time(), ""

    def say(what: str, done: int, total: int) -> None:
        nonlocal last
        if what != last:
            print(f"{time.time() - began:6.0f} s  {done:,} of {total:,}  {what}", flush=True)
            last = what

    found = bench(
        arguments.id_set,
        Root.open(arguments.data),
        [load(path, device) for path in arguments.checkpoint],
        out=arguments.out,
        methods=arguments.methods,
        tracks=arguments.track,
        seeds=arguments.seeds,
        tune=arguments.tune,
        limit=arguments.limit,
        batch_size=arguments.batch_size,
        cache_limit=int(arguments.cache_limit * 2**30),
        only=arguments.only,
        progress=say,
    )
    for what, why in found.skipped.items():
        print(f"not run: {what}: {why}", file=sys.stderr)
    print(f"{len(found.runs)} runs, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
