"""What measurements have in common: memory, a process of its own for each, and the machine."""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any


def alone(script: str, *arguments: object) -> dict[str, Any]:
    """What a script prints as JSON, run in a process that nothing else has used."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def memory(field: str) -> float:
    """MB (2^20 bytes) of this process, from /proc: VmRSS is held now, VmHWM was the highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def restart_peak() -> float:
    """MB held now, from where the highest mark (VmHWM) begins again."""
    held = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    return held


def machine(*, threads: int) -> dict[str, object]:
    """What a measurement was made on."""
    import torch

    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return {
        "cpu": model,
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
