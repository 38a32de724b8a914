"""Every example with five seeds, each run in a process of its own on one core.

    make evidence-examples PYTHON=…   # one with scikit-learn, matplotlib and transformers
    python benchmarks/examples/run.py tabular text

No seed is left out. Writes benchmarks/examples/result-NAME.json; seed 0 draws docs/images/.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from measuring import machine  # noqa: E402 – benchmarks are no package

EXAMPLES = ("text", "tabular", "regression", "segmentation")
SEEDS = range(5)


def run(name: str, seed: int, folder: str) -> dict[str, Any]:
    """The numbers of one run, and the CPU seconds that all of it took."""
    script = ROOT / "examples" / f"{name}.py"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, str(script), "--json", "--seed", str(seed), "--out", folder]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return {"seed": seed, "cpu_s": round(seconds, 1), **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", choices=[*EXAMPLES, []], default=EXAMPLES)
    for name in parser.parse_args().examples:
        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for seed in SEEDS:
                runs.append(run(name, seed, folder))
                print(name, seed, f"{runs[-1]['cpu_s']} s", flush=True)
                if seed == SEEDS[0]:
                    picture = Path(folder, f"{name}.png").read_bytes()
                    (ROOT / "docs" / "images" / f"example-{name}.png").write_bytes(picture)
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
