"""What TULiP costs, in passes of the same network: ratios within one run, medians of turns.

    export PYTHONPATH=src
    python3 benchmarks/speed/run.py                     # all rows of the GPU, within 4 minutes
    python3 benchmarks/speed/run.py --rows rn50-all-10  # one row
    python3 benchmarks/speed/run.py --variants          # one pass, part by part; or --rows NAME
    python3 benchmarks/speed/run.py --device cpu        # the rows of two CPU cores
    python3 benchmarks/speed/run.py --quality CHECKPOINT SETS.npz  # scores instead of time

Every row is measured against an eager pass (energy, TF32 where the row says so) and against energy
through the same engine; all take turns in one process. `passes` are the M + 2 passes with the
outputs on the device, `score` is `detector.score` of inputs that are on the device. Untrained
weights: they do not change the time. `apart` is the largest difference of a logit from the plain
passes in float32, as a share of their range. Memory is what PyTorch has allocated at most, less
what earlier rows have left; that of the passes is taken without a recording, whose memory PyTorch
does not count. The file is written anew after every row.

--fast takes what the variable TULIP_OOD_FAST takes, for instance "compile=1" or "capture=0".
"""

import argparse
import json
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    network: str
    scope: str
    samples: int
    batch: int
    target: float
    precision: str = "half"
    tf32: bool = True


GPU = (
    Row("rn50-all-10", "resnet50", "all", 10, 256, 3.2),
    Row("rn50-all-4", "resnet50", "all", 4, 256, 1.65),
    Row("rn50-last-stage-10", "resnet50", "last-stage", 10, 256, 0.65),
    Row("vit-all-10", "vit_b_16", "all", 10, 256, 2.5, tf32=False),
    Row("rn50-last-stage-10-one", "resnet50", "last-stage", 10, 1, 1.0),
)
CPU = (
    Row("cpu-all-10", "resnet18-32", "all", 10, 100, 9.0, "float32", False),
    Row("cpu-last-block-10", "resnet18-32", "last-block", 10, 100, 2.2, "float32", False),
)
VARIANTS = {
    "plain half": "fold=0,channels_last=0,fuse=0,in_place=0,capture=0",
    "channels last": "fold=0,fuse=0,in_place=0,capture=0",
    "folded": "fuse=0,capture=0",
    "folded, recorded": "fuse=0",
    "folded, recorded, kernels not tried": "fuse=0,choose_kernels=0",
    "fused, recorded": "",
    "compiled, recorded": "compile=1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs="*", help="only these")
    parser.add_argument("--variants", nargs="?", const="resnet50", help="one pass, part by part")
    parser.add_argument("--quality", nargs=2, metavar=("CHECKPOINT", "SETS"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=230.0, help="seconds; then no new row")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--fast", default="", help="as TULIP_OOD_FAST")
    parser.add_argument("--batch", type=int, help="another number of inputs, to try things out")
    parser.add_argument("--inputs", type=int, default=1000, help="of each set, with --quality")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"machine": machine(threads=torch.get_num_threads()), "rows": []}
    if options.device != "cpu":
        result["machine"]["device"] = torch.cuda.get_device_name()
    result["command"] = " ".join(["benchmarks/speed/run.py", *sys.argv[1:]])
    result["fast"] = options.fast
    name = "quality" if options.quality else "variants" if options.variants else "result"
    out = options.out or Path(__file__).with_name(f"{name}-{options.device}.json")
    began = time.perf_counter()
    for work in jobs(options):
        if time.perf_counter() - began > options.budget:
            print("out of budget: the rest is left out")
            break
        row = attempt(work)
        row["seconds"] = round(time.perf_counter() - began, 1)
        result["rows"].append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(row), flush=True)


def jobs(options: argparse.Namespace) -> list[Callable[[], dict[str, Any]]]:
    if options.quality:
        from quality import quality_of

        return [lambda: quality_of(*options.quality, options)]
    if options.variants:
        return [
            lambda name=name, text=text: measure_variant(options.variants, name, text, options)
            for name, text in VARIANTS.items()
            if not options.rows or name in options.rows
        ]
    rows = CPU if options.device == "cpu" else GPU
    chosen = [row for row in rows if not options.rows or row.name in options.rows]
    if options.batch:
        chosen = [replace(row, batch=options.batch) for row in chosen]
    return [lambda row=row: measure(row, options) for row in chosen]


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One part that fails must not take down the rest."""
    import torch

    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# ---------------------------------------------------------------------------------- what is run


def make_network(name: str, device: str, classes: int = 1000) -> tuple[Any, tuple[int, ...]]:
    """An untrained network with statistics of its own, and the shape of an image."""
    import torch

    torch.manual_seed(0)
    if name == "resnet18-32":
        from tulip_ood.models.resnet import ResNet18Small

        model, shape = ResNet18Small(10 if classes == 1000 else classes), (3, 32, 32)
    else:
        import torchvision

        make = getattr(torchvision.models, name)
        model, shape = make(weights=None, num_classes=classes), (3, 224, 224)
    if name == "vit_b_16":  # torchvision begins with a last layer of zeros
        torch.nn.init.normal_(model.heads.head.weight, std=0.05)
    model = model.to(device).train()  # for running statistics with which nothing overflows
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8 if device == "cpu" else 64, *shape, device=device))
    return model.eval(), shape


def make_detector(model: Any, row: Row, device: str, fast: str, network: Any = None) -> Any:
    """TULiP with J > 0, so that all passes are made; fitted on noise. Detectors share a network."""
    import torch

    import tulip_ood

    os.environ["TULIP_OOD_FAST"] = ",".join(filter(None, ("earned=0", fast)))
    shape = (3, 32, 32) if row.network == "resnet18-32" else (3, 224, 224)
    x = torch.randn(64, *shape)
    with torch.no_grad():
        answers = torch.cat([model(part.to(device)).argmax(1).cpu() for part in x.split(32)])
    labels = torch.where(torch.arange(64) % 4 > 0, answers, (answers + 1) % 10)
    detector = tulip_ood.Tulip(
        network or model,
        scope=row.scope,
        n_samples=row.samples,
        epsilon=0.005,
        lam=0.0,
        j=0.5,
        precision=row.precision,
        batch_size=row.batch,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return detector.fit([(x, labels)], recipe="balanced")


def make_round(detector: Any, x: Any, recorded: bool = True) -> Callable[[], Any]:
    """All passes over a batch as the engine makes them, the outputs left on the device."""
    fast, perturbation = detector.engine.fast, detector.engine.perturbation(detector._settings())
    partition = fast._partition(perturbation, x)
    if partition is None:
        raise RuntimeError(f"passes are plain: {fast.refused}")
    together = fast._together(partition, perturbation)
    if not recorded:
        return lambda: together._run(partition.handed(x))
    return lambda: together(x)


def make_energy(detector: Any, x: Any) -> Callable[[], Any]:
    """One pass and its energy through the same engine."""
    import torch

    from tulip_ood.network.captured import Round
    from tulip_ood.network.partition import Partition

    options = detector.engine.fast.options
    network = detector.network
    partition = Partition.of(network, (), x, options.lowering(network))
    together = Round(partition, [partition.weights()], options.acceleration())
    return lambda: -torch.logsumexp(together(x).base.logits.float(), dim=1)


def eager(model: Any, x: Any, tf32: bool) -> Callable[[], Any]:
    """One pass of the energy score, as others run it."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32  # convolutions use it by default

    def run() -> Any:
        with torch.no_grad():
            return -torch.logsumexp(model(x), dim=1)

    return run


# ---------------------------------------------------------------------------------- measuring


def taking_turns(
    runs: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 3
) -> dict[str, float]:
    """The median time of each, in milliseconds; every one is run in every round."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for run in runs.values():
        for _ in range(warm_up):
            run()
    wait()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            wait()
            began = time.perf_counter()
            run()
            wait()
            taken[name].append(1000 * (time.perf_counter() - began))
    return {name: round(statistics.median(times), 3) for name, times in taken.items()}


def measure(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    device = options.device
    before = allocated(device)
    model, shape = make_network(row.network, device)
    x = torch.randn(row.batch, *shape).to(device)
    found: dict[str, Any] = asdict(row)
    one_pass = eager(model, x, row.tf32)
    if device != "cpu":
        found["peak_single"] = peak(one_pass) - before
    detector = make_detector(model, row, device, options.fast)
    began = time.perf_counter()
    passes, energy = make_round(detector, x), make_energy(detector, x)
    for run in (passes, passes, energy, energy):
        run()
    found["seconds_to_prepare"] = round(time.perf_counter() - began, 2)
    runs = {"eager": one_pass, "engine_energy": energy, "passes": passes}
    runs["score"] = lambda: detector.score(x)
    times = taking_turns(runs, options.rounds, 1 if device == "cpu" else 3)
    found["ms"] = times
    found["passes_ratio"] = round(times["passes"] / times["eager"], 3)
    found["score_ratio"] = round(times["score"] / times["eager"], 3)
    found["to_engine_energy"] = round(times["passes"] / times["engine_energy"], 3)
    found["held"] = found["passes_ratio"] <= row.target
    found["held_by_score"] = found["score_ratio"] <= row.target
    if device != "cpu":
        found["peak_passes"] = peak(make_round(detector, x, recorded=False)) - before
        scales = detector.engine.perturbation(detector._settings()).scales
        moved = sum(detector.network.parameters[name].numel() for name in scales)
        found["copies_bytes"] = 2 * moved * (row.samples + 1)
        found["peak_limit"] = 1.5 * found["peak_single"] + found["copies_bytes"]
    found["apart"] = apart_from_plain(model, detector, passes, x)
    found["refused"] = detector.engine.fast.refused
    return found


def allocated(device: str) -> int:
    """Bytes on the GPU that are in use, after what nobody refers to has gone."""
    import gc

    import torch

    gc.collect()
    return int(torch.cuda.memory_allocated()) if device != "cpu" else 0


def peak(run: Callable[[], Any]) -> int:
    """Bytes allocated on the GPU at most, weights and inputs included."""
    import torch

    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def apart_from_plain(model: Any, detector: Any, passes: Callable[[], Any], x: Any) -> float:
    """The largest difference of a logit from the plain passes in float32, of their range."""
    import torch

    from tulip_ood.network.network import Network
    from tulip_ood.network.perturbation import Perturbation
    from tulip_ood.network.running import run_passes

    few = x[:32]
    network = Network(model, detector.task)
    network.probe(few[:4])
    held = detector.engine.perturbation(detector._settings())
    plain = Perturbation(network, held.scales, held.means, held.settings, hold=False)
    made = run_passes(plain, few, batch_size=32)
    base, others = passes()
    fast = torch.cat([base[0][None], others])[:, :32].float().cpu()
    assert made.drift is not None
    true = torch.cat([made.base[None], made.noisy, made.drift[None]]).float()
    return float(f"{(fast - true).abs().max() / (true.max() - true.min()):.2g}")


def measure_variant(network: str, name: str, text: str, options: argparse.Namespace) -> Any:
    """One base pass of the whole network through the engine, with some parts of it off."""
    import torch

    row = Row(name, network, "all", 2, options.batch or 256, 0.0)
    if options.device == "cpu":
        row = replace(row, precision="float32")
    model, shape = make_network(network, options.device)
    x = torch.randn(row.batch, *shape).to(options.device)
    detector = make_detector(model, row, options.device, text)
    began = time.perf_counter()
    run = make_energy(detector, x)
    for _ in range(3):
        run()
    ready = time.perf_counter() - began
    times = taking_turns({"eager": eager(model, x, tf32=True), "pass": run}, options.rounds)
    compiled = "compile" in text  # once is long enough
    return {
        "variant": name,
        "options": text,
        "ms": times,
        "ratio": round(times["pass"] / times["eager"], 3),
        "seconds_to_prepare": round(ready, 2),
        "apart": None
        if compiled
        else apart_from_plain(model, detector, make_round(detector, x), x),
    }


if __name__ == "__main__":
    main()
