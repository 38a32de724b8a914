"""What the measurements of the server on Ray share: the command, its processes, requests."""

import http.client
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import setting
from PIL import Image

import tulip_ood

TOKEN = "a token for measurements"
JSON = "application/json"


@contextmanager
def serving(file: str, model: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """`tulip serve --engine ray` as a user starts it: its address and its process."""
    command = [sys.executable, "-m", "tulip_ood", "serve", file, "--model", f"setting:{model}"]
    command += ["--engine", "ray", "--port", "0", *arguments]
    environment = os.environ | {"TULIP_TOKEN": TOKEN}
    process = subprocess.Popen(
        command, cwd=setting.HERE, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        sys.exit(f"the server did not start: {line!r}")
    try:
        yield line.removeprefix("listening on ").strip(), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        if process.wait(timeout=120) != 0 or "everything that was asked is answered" not in rest:
            sys.exit(f"the server ended with {process.returncode}: {rest!r}")


def replicas(server: int) -> list[int]:
    """The processes that hold the network."""
    below = setting.processes(server)
    return sorted(n for n, title, _ in below if title.startswith("ray::ServeReplica"))


def ticks(process: int) -> int:
    """Processor time that a process has used."""
    after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(after[11]) + int(after[12])


def ask(
    url: str, path: str, content: bytes, kind: str = "image/png", method: str = "POST"
) -> tuple[str, Any]:
    """The status, or what went wrong with the connection; and the answer."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    headers = {"content-type": kind, "authorization": f"Bearer {TOKEN}"}
    try:
        connection.request(method, path, content, headers)
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, None
    finally:
        connection.close()
    return str(reply.status), json.loads(body) if path != "/metrics" else body.decode()


def png(i: int) -> bytes:
    """Noise as in the validation data, so that scores lie around thresholds."""
    values = 0.5 + 0.25 * np.random.default_rng(i).normal(size=(setting.SIDE, setting.SIDE, 3))
    held = io.BytesIO()
    Image.fromarray((255 * values.clip(0, 1)).round().astype(np.uint8)).save(held, "PNG")
    return held.getvalue()


def local(files: list[bytes], file: str, model: str) -> tuple[Any, Any]:
    """The detector in this process, and its scores."""
    detector = tulip_ood.load(file, getattr(setting, model)())
    x = setting.PREPARED.normalise(np.stack([setting.PREPARED.pixels(f) for f in files]))
    return detector, detector.score(x).numpy()


def gone_after(processes: list[int], patience: float = 90.0) -> tuple[float, int]:
    """Seconds until all of these are gone, and how many are not."""
    begun = time.perf_counter()
    while True:
        left = sum(Path(f"/proc/{number}").exists() for number in processes)
        seconds = time.perf_counter() - begun
        if not left or seconds > patience:
            return round(seconds, 1), left
        time.sleep(0.1)
