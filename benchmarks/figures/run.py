"""Every figure of docs/why.md, drawn by the command, with its numbers and what it says.

    make evidence-figures DATA=root NETWORKS="c10_s0.safetensors …" MORE="c100_s0.safetensors …"

Writes here NAME.parquet (the numbers) and result.json (the command, what it printed, how long it
took), and the pictures, made small, into docs/images/. `--only` draws some of them again; `--only
all` runs `tulip reproduce all`. Passes are taken from `--cache`, where passes.py puts those that a
GPU has made; the sides of A5 come from sides.py.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMAGES = ROOT / "docs" / "images"
RESULT = HERE / "result.json"
RESULTS = [f"benchmarks/results/{name}" for name in ("cifar10", "cifar100", "cifar10-dropout")]
TUNING = [f"benchmarks/tuning/result-{name}.json" for name in ("cifar10", "cifar100")]
SIDES = sorted(HERE.glob("sides-*.json"))  # sides.py
WIDTH, SHADES = 1300, 160  # of the pictures in the documents
LARGEST_PICTURE = 150_000
LARGEST = 120_000  # bytes of numbers that are kept here


def repeated(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def commands(given: argparse.Namespace) -> dict[str, list[str]]:
    """What follows `tulip reproduce NAME`."""
    data = ["--data", given.data]
    networks = repeated("--checkpoint", given.checkpoint)
    passes = ["--cache", given.cache] if given.cache else []
    limit = ["--limit", str(given.limit)]
    fewer = ["--limit", str(min(given.limit, 500)), "--samples", "4"]
    every = [*data, *networks, *repeated("--checkpoint", given.more), *passes, *limit]
    finished = repeated("--results", RESULTS)
    tuning = repeated("--tuning", TUNING)
    sides = repeated("--sides", [str(path.relative_to(ROOT)) for path in SIDES])
    return {
        "bound-regression": [],
        "bound-classification": [],
        "closeness": sides,
        "lambda-sweep": every,
        "bound-histogram": every,
        "msp-shift": every,
        "enhancement": every,
        "ablation": [*data, *networks, *passes, *fewer],
        "timing": [*data, *networks[:2], "--limit", "32"],
        "table-1": finished,
        "table-2": finished,
        "balanced-lambda": finished,
        "self-tuning": [*finished, *tuning],
        "what-the-bound-adds": [*finished, *every],
        "all": [*finished, *tuning, *sides, *every],
    }


def small(source: Path, target: Path) -> None:
    """A picture for a document: narrower, with few shades."""
    with Image.open(source) as image:
        plain = image.convert("RGB")
        height = round(plain.height * WIDTH / plain.width)
        if plain.width > WIDTH:
            plain = plain.resize((WIDTH, height), Image.Resampling.LANCZOS)
        plain.quantize(SHADES, dither=Image.Dither.NONE).save(target, optimize=True)
        if target.stat().st_size > LARGEST_PICTURE:
            # Many shades, as on a map: the octree packs them, and keeps rare colours of marks.
            few = plain.quantize(SHADES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(target, optimize=True)


def draw(name: str, more: list[str], out: Path) -> dict[str, Any]:
    words = ["reproduce", name, *more, "--out", str(out)]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tulip_ood", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    # Files by their names: the folders are this machine's.
    shown = [Path(word).name if word.startswith("/") else word for word in more]
    found = {
        "command": shlex.join(["tulip", "reproduce", name, *shown]),
        "seconds": round(seconds, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "torch": torch.__version__,
    }
    if name == "all":
        taken = re.findall(r"^([a-z0-9-]+): ([0-9.]+) s$", done.stderr, re.MULTILINE)
        return {**found, "seconds_each": {each: float(number) for each, number in taken}}
    small(out / f"{name}.png", IMAGES / f"{name}.png")
    numbers = out / f"{name}.parquet"
    if numbers.stat().st_size <= LARGEST:
        (HERE / f"{name}.parquet").write_bytes(numbers.read_bytes())
    says = [line for line in done.stdout.splitlines() if not line.startswith("wrote ")]
    return {**found, "says": says}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint", nargs="+", required=True)
    parser.add_argument("--more", nargs="*", default=[], help="networks of another ID set")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--cache", help="where passes are kept")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, more in commands(given).items():
        if given.only and name not in given.only:
            continue
        print(name, flush=True)
        drawn = draw(name, more, given.out.resolve())
        found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        found[name] = drawn
        RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
