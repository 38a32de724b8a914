"""How long `import tulip_ood` takes beyond `import torch`, each in processes of their own.

make evidence-imports
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import machine

HERE = Path(__file__).parent
TIMES = 10
KINDS = ("clock", "cpu")
LIMIT = 0.2  # seconds that we may add
WHAT = {
    "torch": "import torch",
    "tulip_ood without torch": "import tulip_ood",
    "import tulip_ood": "import torch, tulip_ood",
    "tulip_ood.Tulip, tulip_ood.load": "import torch, tulip_ood; tulip_ood.Tulip; tulip_ood.load",
}


def seconds(code: str) -> tuple[float, float]:
    """By the clock, and of the processor."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    for code in WHAT.values():  # once for the disk
        seconds(code)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WHAT}
    for _ in range(TIMES):  # by turns, so that a busy minute harms all alike
        for name, code in WHAT.items():
            found[name].append(seconds(code))
    # The shortest: other work on the machine only ever adds.
    shortest = {
        name: {
            "clock": round(min(w for w, _ in times), 3),
            "cpu": round(min(c for _, c in times), 3),
        }
        for name, times in found.items()
    }
    beyond = {
        name: {kind: round(shortest[name][kind] - shortest["torch"][kind], 3) for kind in KINDS}
        for name in list(WHAT)[2:]
    }
    result = {
        "command": "make evidence-imports",
        "processes of each": TIMES,
        "shortest, s": shortest,
        "beyond torch, s": beyond,
        "limit, s": LIMIT,
        "kept": all(times["cpu"] <= LIMIT for times in beyond.values()),
        "load of the machine": os.getloadavg()[0],
        "machine": machine(threads=1),
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if not result["kept"]:
        sys.exit("importing takes longer than promised")


if __name__ == "__main__":
    main()
