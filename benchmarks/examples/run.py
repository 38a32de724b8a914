"""Every example with five seeds, each run in a process of its own on one core.

    make evidence-examples PYTHON=…   # one with scikit-learn, matplotlib and transformers
    python benchmarks/examples/run.py tabular text

No seed is left out. Writes benchmarks/examples/result-NAME.json; seed 0 draws docs/images/.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from measuring import machine  # noqa: E402 – benchmarks are no package

EXAMPLES = ("text", "tabular", "regression", "segmentation")
SEEDS = range(5)


def run(name: str, seed: int, folder: str) -> dict[str, Any]:
    """The numbers of one run; seed 0 also leaves its picture."""
    own = Path(folder, str(seed))
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--json"]
    command += ["--seed", str(seed), "--out", str(own)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if seed == SEEDS[0]:
        picture = (own / f"{name}.png").read_bytes()
        (ROOT / "docs" / "images" / f"example-{name}.png").write_bytes(picture)
    print(name, seed, flush=True)
    return {"seed": seed, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", default=EXAMPLES, metavar="EXAMPLE")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    given = parser.parse_args()
    for name in given.examples:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
            runs = list(pool.map(lambda seed: run(name, seed, folder), SEEDS))  # noqa: B023
        result = {
            "command": f"python benchmarks/examples/run.py {name}",
            "machine": machine(threads=1),
            "median_cpu_s": median(each["cpu_s"] for each in runs),
            "runs": runs,
        }
        target = Path(__file__).parent / f"result-{name}.json"
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
