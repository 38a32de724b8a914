"""What does it save to run the part of a network that no noise reaches once instead of M + 2 times?

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/speed/partition.py   # writes partition-cpu.json

ResNet-18 at 32 × 32, in evaluation mode, untrained: weights do not change the time. For every scope
the plain passes and those through a partition take turns in one process; each pair of neighbours
gives a ratio, and the median of these is reported with the smallest and the largest. `expected` is
what counting multiplications promises: (M + 2) passes against one trunk and (M + 2) tails. On a
device other than the CPU add --device cuda, and more inputs.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine

SCOPES = ("all", "last-stage", "last-block", "head")
THREADS = 1
# Rounding: the largest difference of a logit, as a share of the logits' range.
CLOSE = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--samples", type=int, default=10, help="M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("partition-cpu.json"))
    options = parser.parse_args()
    rows = measure(options)
    on = machine(threads=THREADS)
    if options.device != "cpu":
        import torch

        on["device"] = torch.cuda.get_device_name()
    held = all(row["apart"] <= CLOSE for row in rows)
    result = {
        "machine": on,
        "network": "ResNet18Small, 32 px",
        "inputs": options.inputs,
        "passes": options.samples + 2,
        "rounds": options.rounds,
        "held": held,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"equal to {CLOSE:g} of the logits' range: {'yes' if held else 'NO'}")
    sys.exit(0 if held else 1)


def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    import torch

    from tulip_ood.models.resnet import ResNet18Small
    from tulip_ood.network.initial_mean import InitialMean
    from tulip_ood.network.network import Network
    from tulip_ood.network.partition import Partition
    from tulip_ood.network.partitioned import run_partitioned
    from tulip_ood.network.perturbation import PassSettings, Perturbation
    from tulip_ood.network.running import run_passes
    from tulip_ood.network.scope import parameters_in_scope
    from tulip_ood.numerics.tasks import make_task

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    network = Network(ResNet18Small(10), make_task("classification"), device=options.device)
    x = torch.rand(options.inputs, 3, 32, 32)
    probe = network.probe(x)
    rows: list[dict[str, object]] = []
    for scope in SCOPES:
        names = parameters_in_scope(
            network.module, network.parameters, scope, probe.calls, probe.head
        )
        perturbation = Perturbation(
            network,
            dict.fromkeys(names, 1.0),
            InitialMean({}, ()),
            PassSettings(0.01, n_samples=options.samples),
        )
        began = time.perf_counter()
        partition = Partition.of(network, perturbation.scales, x)
        making = time.perf_counter() - began
        plain, fast, apart = alternately(
            lambda p=perturbation: run_passes(p, x, batch_size=len(x)),
            lambda c=partition, p=perturbation: run_partitioned(c, p, x, batch_size=len(x)),
            options.rounds,
        )
        ratios = [one / two for one, two in zip(plain, fast, strict=True)]
        passes = options.samples + 2
        share = partition.trunk_share
        rows.append(
            {
                "scope": scope,
                "trunk_share": round(share, 4),
                "expected": round(passes / (share + passes * (1 - share)), 2),
                "speedup": round(statistics.median(ratios), 2),
                "speedup_range": [round(min(ratios), 2), round(max(ratios), 2)],
                "plain_seconds": round(statistics.median(plain), 3),
                "partitioned_seconds": round(statistics.median(fast), 3),
                "seconds_to_cut": round(making, 2),
                "apart": float(f"{apart:.2g}"),
            }
        )
        print(
            "{scope:10} trunk {trunk_share:6.1%}: {speedup:5.2f} times as fast ({expected:5.2f} "
            "expected), cut in {seconds_to_cut} s, logits within {apart:g}".format(**rows[-1])
        )
    return rows


def alternately(
    plain: Callable[[], object], fast: Callable[[], object], rounds: int
) -> tuple[list[float], list[float], float]:
    """Seconds of either, turn by turn, after one turn that does not count; and how far apart."""
    one, two = plain(), fast()
    apart = max(
        float((getattr(one, name) - getattr(two, name)).abs().max())
        for name in ("base", "noisy", "drift")
    ) / float(one.noisy.max() - one.noisy.min())
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, taken in zip((plain, fast), seconds, strict=True):
            began = time.perf_counter()
            run()  # its results are on the CPU: nothing is left under way
            taken.append(time.perf_counter() - began)
    return *seconds, apart


if __name__ == "__main__":
    main()
