"""Every figure of docs/why.md, drawn by the command, with its numbers and what it says.

    make evidence-figures DATA=root NETWORKS="cifar10.safetensors cifar100.safetensors" LIMIT=300

Writes here NAME.parquet (the numbers) and result.json (the command, what it printed), and the
pictures, made small, into docs/images/. `--only` draws some of them again.
"""

import argparse
import json
import platform
import shlex
import subprocess
import sys
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
WIDTH, SHADES = 1300, 160  # of the pictures in the documents
LARGEST_PICTURE = 150_000
LARGEST = 120_000  # bytes of numbers that are kept here


def repeated(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def commands(given: argparse.Namespace) -> dict[str, list[str]]:
    """What follows `tulip reproduce NAME`."""
    data = ["--data", given.data]
    passes = ["--cache", given.cache] if given.cache else []
    every = [*data, *repeated("--checkpoint", given.checkpoint), *passes]
    first = [*data, "--checkpoint", given.checkpoint[0], *passes]
    limit = ["--limit", str(given.limit)]
    fewer = ["--limit", str(given.limit // 2), "--samples", "4"]
    finished = repeated("--results", RESULTS)
    return {
        "bound-regression": [],
        "bound-classification": [],
        "closeness": ["--images", "16"],
        "lambda-sweep": [*every, *limit],
        "bound-histogram": [*every, *limit],
        "msp-shift": [*every, *limit],
        "enhancement": [*every, *limit],
        "ablation": [*first, *fewer],
        "timing": [*data, "--checkpoint", given.checkpoint[0], "--limit", "16"],
        "table-1": finished,
        "table-2": finished,
        "balanced-lambda": finished,
        "self-tuning": [*finished, *repeated("--tuning", TUNING)],
        "what-the-bound-adds": [*finished, *every, *fewer],
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
    done = subprocess.run(
        [sys.executable, "-m", "tulip_ood", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    small(out / f"{name}.png", IMAGES / f"{name}.png")
    numbers = out / f"{name}.parquet"
    if numbers.stat().st_size <= LARGEST:
        (HERE / f"{name}.parquet").write_bytes(numbers.read_bytes())
    # Files by their names: the folders are this machine's.
    shown = [Path(word).name if word.startswith("/") else word for word in more]
    return {
        "command": shlex.join(["tulip", "reproduce", name, *shown]),
        "says": [line for line in done.stdout.splitlines() if not line.startswith("wrote ")],
        "machine": platform.machine(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=300)
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
