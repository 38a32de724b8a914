"""A server as a user starts it, in a process of its own, with the digits' detector."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def prepared(folder: Path, python: str = sys.executable, steepness: float = 1.8) -> Path:
    """The network, its detectors and pictures, made once."""
    if not (folder / "rival.safetensors").exists():
        given = f"Path({str(folder)!r}), {steepness}"
        code = f"from pathlib import Path; from digits import prepare; prepare({given})"
        command = [os.path.abspath(python), "-c", code]
        subprocess.run(command, check=True, env=environment(folder), cwd=HERE)
    return folder


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(HERE)])
    return {**os.environ, "PYTHONPATH": paths, "TULIP_DIGITS": str(folder), "OMP_NUM_THREADS": "1"}


@contextmanager
def serving(
    folder: Path, *arguments: object, python: str = sys.executable
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a running server, and its process; it must end well when told to."""
    command = [
        os.path.abspath(python),
        "-m",
        "tulip_ood",
        "serve",
        str(folder / "detector.safetensors"),
    ]
    command += ["--model", "digits:make", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, env=environment(folder), cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        raise RuntimeError(f"the server did not start: {line!r}")
    try:
        yield line.removeprefix("listening on ").strip(), process
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=60) != 0:
            raise RuntimeError(f"the server ended with {process.returncode}")
        process.stdout.close()
