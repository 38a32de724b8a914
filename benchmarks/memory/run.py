"""How much memory do distance detectors take to learn from more and more training data?

    .venv/bin/python benchmarks/memory/run.py             # writes result.json beside this file

Synthetic features go through each method's learner batch by batch, as they would come from a
training loader, in a process of their own for every number of inputs. `peak_mb` is what learning
adds at its highest, over what the process held before; what was learned is part of it. MDS, RMDS,
fDBD and NCI keep sums alone. ViM keeps up to 65,536 inputs for its α, so it is flat from there on.
KNN keeps every input: `kept_mb` is what it has learned. NNGuide keeps 1 %.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import alone, machine, memory, restart_peak

COUNTS = (20_000, 80_000, 320_000)
WIDTH, CLASSES, BATCH = 512, 10, 1000
THREADS = 1
TURNS = 5  # processes: when memory goes back to the system differs between them by some 10 MB
METHODS = ("mds", "rmds", "vim", "fdbd", "nci", "knn", "nnguide")
FLAT = ("mds", "rmds", "vim", "fdbd", "nci")
# Flat: between the two largest numbers of inputs, memory grows by less than this share of what
# the additional features would take.
GROWTH = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "N"), help="measure in-process")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    rows = []
    for method in METHODS:
        for n in COUNTS:
            turns = [alone(__file__, "--one", method, n) for _ in range(TURNS)]
            turns.sort(key=lambda row: float(row["peak_mb"]))
            rows.append({**turns[TURNS // 2], "peaks_mb": [row["peak_mb"] for row in turns]})
            print(
                "{method:8} {n:7} inputs {features_mb:5} MB of features: peak {peak_mb:5} MB, "
                "kept {kept_mb:5} MB, {seconds:5.1f} s".format(**rows[-1])
            )
    flat = {method: is_flat(rows, method) for method in METHODS}
    held = all(flat[method] for method in FLAT)
    result = {"machine": machine(threads=THREADS), "features": WIDTH, "flat": flat, "held": held}
    options.out.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")
    print(f"flat for {', '.join(FLAT)}: {'yes' if held else 'NO'}")
    sys.exit(0 if held else 1)


def is_flat(rows: list[dict[str, object]], method: str) -> bool:
    peaks = {row["n"]: row["peak_mb"] for row in rows if row["method"] == method}
    grown = peaks[COUNTS[-1]] - peaks[COUNTS[-2]]
    return grown < GROWTH * features_mb(COUNTS[-1] - COUNTS[-2])


def features_mb(n: int) -> float:
    return n * WIDTH * 4 / 2**20


def measure(method: str, n: int) -> dict[str, object]:
    """One learner and n inputs, in this process."""
    import torch

    from tulip_ood.detectors.fdbd import FDBD
    from tulip_ood.detectors.knn import KNN
    from tulip_ood.detectors.mds import MDS
    from tulip_ood.detectors.nci import NCI
    from tulip_ood.detectors.nnguide import NNGuide
    from tulip_ood.detectors.rmds import RMDS
    from tulip_ood.detectors.vim import ViM
    from tulip_ood.network.features import Head
    from tulip_ood.network.passes import Passes
    from tulip_ood.network.perturbation import PassSettings

    torch.set_num_threads(THREADS)
    kinds = {kind.name: kind for kind in (MDS, RMDS, ViM, FDBD, NCI, KNN, NNGuide)}
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    head = Head(layer.weight.detach(), layer.bias.detach())
    settings = PassSettings(1.0, n_samples=0)

    def batch() -> Passes:
        features = torch.empty(BATCH, WIDTH).normal_(generator=generator).relu_()
        logits = head.logits(features)
        none = logits.new_empty((0, *logits.shape))
        return Passes(logits, none, None, features, logits.argmax(1), settings, heads=(head,))

    # What the first use of each routine allocates once and for all is not the data's.
    warm = kinds[method](layer)._learner()
    warm.add(batch())
    del warm
    learner = kinds[method](layer)._learner()
    before = restart_peak()
    start = time.perf_counter()
    for _ in range(n // BATCH):
        learner.add(batch())
    state = learner.finish()
    seconds = time.perf_counter() - start
    return {
        "method": method,
        "n": n,
        "features_mb": round(features_mb(n)),
        "peak_mb": round(memory("VmHWM") - before),
        "kept_mb": round(sum(size(value) for value in vars(state).values()) / 2**20),
        "seconds": round(seconds, 1),
    }


def size(value: object) -> int:
    """Bytes of the tensors in what was learned."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(size(inner) for inner in vars(value).values()) if hasattr(value, "__dict__") else 0


if __name__ == "__main__":
    main()
