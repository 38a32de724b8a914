"""Seconds and memory of every metric on ten million scores (twenty where there are ID and OOD).

    .venv/bin/python benchmarks/metrics/run.py            # writes result.json beside this file

Each metric runs in a process of its own. `memory_mb` is what the call adds at its highest, over
what the process held with the scores in it; `process_mb` is the highest of the whole process:
interpreter, torch and the scores included. The goal is 1 GB and 20 s.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import alone, machine, memory, restart_peak

N = 10_000_000
LIMIT_MB, LIMIT_S = 1024, 20
THREADS = 2
ID_AND_OOD = (
    "auroc",
    "aupr_in",
    "aupr_out",
    "id_flagged_at_95_ood",
    "ood_missed_at_95_id",
    "roc_curve",
)
ID_ALONE = ("aurc", "augrc", "risk_coverage", "ece", "reliability")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("METRIC", "SCORES"), help="measure in-process")
    parser.add_argument("--n", type=int, default=N)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.n)))
        return
    rows = []
    for metric in (*ID_AND_OOD, *ID_ALONE):
        for scores in ("distinct", "tied"):
            rows.append(alone(__file__, "--one", metric, scores, "--n", options.n))
            print("{metric:22} {scores:9} {seconds:6.2f} s {memory_mb:6} MB".format(**rows[-1]))
    held = all(r["seconds"] <= LIMIT_S and r["process_mb"] <= LIMIT_MB for r in rows)
    result = {
        "machine": machine(threads=THREADS),
        "limit_s": LIMIT_S,
        "limit_mb": LIMIT_MB,
        "held": held,
    }
    options.out.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")
    print(f"within {LIMIT_S} s and {LIMIT_MB} MB (the whole process): {'yes' if held else 'NO'}")
    sys.exit(0 if held else 1)


def measure(metric: str, scores: str, n: int) -> dict[str, object]:
    """One call, in this process."""
    import torch

    from tulip_ood.numerics import metrics

    torch.set_num_threads(THREADS)
    generator = torch.Generator().manual_seed(0)

    def draw(centre: float) -> torch.Tensor:
        values = torch.empty(n, dtype=torch.float64).normal_(centre, 1, generator=generator)
        return values.mul_(8).round_().div_(8) if scores == "tied" else values

    if metric in ID_AND_OOD:
        arguments = draw(0.0), draw(1.0)
    else:
        unsure = draw(0.0)
        wrong = torch.empty(n, dtype=torch.float64).uniform_(generator=generator) < 0.1
        arguments = (unsure.sigmoid_() if metric in ("ece", "reliability") else unsure), wrong
    held = restart_peak()
    start = time.perf_counter()
    value = getattr(metrics, metric)(*arguments)
    seconds = time.perf_counter() - start
    peak = memory("VmHWM")
    return {
        "metric": metric,
        "scores": scores,
        "n": n,
        "seconds": round(seconds, 2),
        "memory_mb": round(peak - held),
        "process_mb": round(peak),
        "value": value if isinstance(value, float) else None,
    }


if __name__ == "__main__":
    main()
