"""What all examples share: their command line, and how results are told."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tulip_ood.benchmark.results import Comparison
from tulip_ood.network.files import appear

Numbers = dict[str, Any]


def judged(found: Comparison) -> Numbers:
    """Of each method: ID inputs kept, AUROC and the share refused on each OOD set."""
    return {
        name: {
            "kept": result.coverage,
            "auroc": {each: part.auroc for each, part in result.sets.items()},
            "refused": {each: part.refused for each, part in result.sets.items()},
        }
        for name, result in found.methods.items()
    }


def as_text(numbers: Numbers) -> str:
    """The numbers as a small table, in percent."""
    methods = numbers["methods"]
    sets = list(next(iter(methods.values()))["auroc"])
    width = max(map(len, methods))
    lines = [f"{name}: {value:.3f}" for name, value in numbers.items() if name != "methods"]
    lines += ["", "AUROC (refused) in %; kept: ID test inputs accepted at the 5 % threshold"]
    lines.append(" " * width + "  kept  " + "  ".join(f"{name:>14}" for name in sets))
    for name, found in methods.items():
        cells = [f"{100 * found['auroc'][s]:.1f} ({100 * found['refused'][s]:.0f})" for s in sets]
        shown = "  ".join(f"{c:>{max(14, len(s))}}" for c, s in zip(cells, sets, strict=True))
        lines.append(f"{name:<{width}}  {100 * found['kept']:4.1f}  {shown}")
    return "\n".join(lines)


def main(
    name: str,
    run: Callable[[int, bool], tuple[Numbers, Any]],
    draw: Callable[[Any, Path], None],
) -> None:
    """`python examples/NAME.py`: run, print the numbers, save the picture and say where it is."""
    parser = argparse.ArgumentParser(prog=f"python examples/{name}.py")
    parser.add_argument("--seed", type=int, default=0)
    place = Path("tulip-examples")  # not among the user's files
    parser.add_argument(
        "--out", type=Path, default=place, help="folder of the picture (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny and poor: to see that it runs")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    given = parser.parse_args()
    try:
        given.out.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    except OSError as error:
        parser.error(f"--out {given.out}: no folder can be made there ({error.strerror})")
    torch.set_num_threads(1)  # networks this small gain nothing from more
    numbers, picture = run(given.seed, given.quick)
    path = given.out / f"{name}.png"
    appear(path, lambda partial: draw(picture, partial))
    if given.json:
        print(json.dumps({"cpu_s": round(time.process_time(), 1), **numbers}))
    else:
        print(f"{as_text(numbers)}\n\npicture: {path.resolve()}")
