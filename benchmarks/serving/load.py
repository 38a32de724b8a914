"""10,000 requests of mixed sizes from 64 clients on loopback: is any answer lost or wrong?

    .venv/bin/python benchmarks/serving/load.py           # writes load.json beside this file

A server in a process of its own (`tulip serve`, the small network on digits, one thread for its
arithmetic, with a shadow and a log) is asked by 64 threads, each over one connection that is kept
open: single images as they are (PNG and JPEG of 8 to 160 pixels), forms of 2 to 8 images, JSON with
base64, and one in fifty that is no image at all. Every score is held against the local one. Memory
is the server's resident size, taken after every 500 requests; it is flat if the last fifth needs
less than 2 % more than the second fifth. Latency is a client's: from the first byte of the request
to the last of the answer, 64 of them waiting at the same time. Both processes share this machine.
"""

import argparse
import base64
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from started import prepared, serving

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine

REQUESTS, CLIENTS, EVERY = 10_000, 64, 500
TOLERANCE = 1e-5
NO_IMAGE = b"this is no image"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--folder", type=Path, help="keep the network and pictures here")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("load.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared(options.folder or Path(temporary))
        files = [path.read_bytes() for path in sorted((folder / "images").rglob("*.*"))]
        expected = local_scores(folder, files)
        log = Path(temporary, "scores.jsonl")
        more = ["--shadow", folder / "rival.safetensors", "--log", log]
        with serving(folder, *more) as (url, process):
            run = Load(url, process.pid, files, expected)
            before = processor_seconds(process.pid)
            run.all(options.requests)
            used = processor_seconds(process.pid) - before
            metrics = run.metrics()
        logged = sum(1 for line in log.read_text().splitlines() if '"score"' in line)
    result = run.result(metrics) | {"logged": logged, "server_cpu_seconds": round(used, 1)}
    result["cpu_ms_per_image"] = round(1000 * used / run.images, 2)
    result["held"] = (
        result["lost"] == result["wrong"] == 0
        and result["memory"]["flat"]
        and result["largest_difference"] <= TOLERANCE
        and logged == 2 * run.images
    )
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["held"] else 1)


def local_scores(folder: Path, files: list[bytes]) -> list[float]:
    os.environ["TULIP_DIGITS"] = str(folder)
    import torch
    from digits import PREPARED, make

    import tulip_ood

    torch.set_num_threads(1)
    detector = tulip_ood.load(folder / "detector.safetensors", make())
    pixels = np.stack([PREPARED.pixels(content) for content in files])
    return detector.score(PREPARED.normalise(pixels)).tolist()


class Load:
    """Clients, and what they have seen."""

    def __init__(self, url: str, pid: int, files: list[bytes], expected: list[float]) -> None:
        self.host = url.removeprefix("http://").strip("/")
        self.pid, self.files, self.expected = pid, files, expected
        self.lock = threading.Lock()
        self.next = self.answered = self.images = self.wrong = self.refused = 0
        self.largest = 0.0
        self.seconds: list[float] = []
        self.memory: list[float] = []
        self.problems: list[str] = []

    def all(self, requests: int) -> None:
        self.requests = requests
        begun = time.perf_counter()
        threads = [threading.Thread(target=self.client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.elapsed = time.perf_counter() - begun

    def client(self) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        while True:
            with self.lock:
                number = self.next
                self.next += 1
                if number < self.requests and number % EVERY == 0:
                    self.memory.append(resident(self.pid))
            if number >= self.requests:
                break
            try:
                self.ask(connection, number)
            except Exception as error:  # an answer that did not come
                with self.lock:
                    self.problems.append(f"{number}: {error!r}")
                connection.close()
        connection.close()

    def ask(self, connection: http.client.HTTPConnection, number: int) -> None:
        rng = np.random.default_rng(number)
        body, kind, chosen = request(rng, self.files)
        begun = time.perf_counter()
        connection.request("POST", "/v1/score", body, {"Content-Type": kind})
        reply = connection.getresponse()
        text = reply.read()
        took = time.perf_counter() - begun
        found = json.loads(text)
        with self.lock:
            self.answered += 1
            self.seconds.append(took)
            if chosen is None:
                self.refused += reply.status == 422
                self.wrong += reply.status != 422
                return
            if reply.status != 200 or len(found["results"]) != len(chosen):
                self.wrong += 1
                self.problems.append(f"{number}: {reply.status} {text[:200]!r}")
                return
            self.images += len(chosen)
            pairs = zip(chosen, found["results"], strict=True)
            off = max(abs(one["score"] - self.expected[i]) for i, one in pairs)
            self.largest = max(self.largest, off)
            self.wrong += off > TOLERANCE

    def metrics(self) -> str:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def result(self, metrics: str) -> dict[str, Any]:
        rows = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] != "#")
        batches = float(rows["tulip_batch_size_count"])
        fifth = max(1, len(self.memory) // 5)
        early, late = (
            np.mean(part) for part in (self.memory[fifth : 2 * fifth], self.memory[-fifth:])
        )
        quantiles = np.quantile(self.seconds, [0.5, 0.9, 0.99, 1.0])
        return {
            "command": "make evidence-serving",
            "machine": machine(threads=1) | {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
            "requests": self.requests,
            "clients": CLIENTS,
            "images": self.images,
            "no_images_refused": self.refused,
            "lost": self.requests - self.answered,
            "wrong": self.wrong,
            "problems": self.problems[:5],
            "largest_difference": self.largest,
            "seconds": round(self.elapsed, 1),
            "requests_per_second": round(self.requests / self.elapsed),
            "images_per_second": round(self.images / self.elapsed),
            "latency_ms": {
                name: round(1000 * value, 1)
                for name, value in zip(("p50", "p90", "p99", "max"), quantiles, strict=True)
            },
            "images_per_batch": round(self.images / batches, 1),
            "memory": {
                "mb": [round(value, 1) for value in self.memory],
                "growth": round(float(late / early) - 1, 4),
                "flat": bool(late < 1.02 * early),
            },
        }


def request(rng: np.random.Generator, files: list[bytes]) -> tuple[bytes, str, "list[int] | None"]:
    """A body, its type, and which files are in it; None if there is no image."""
    kind = rng.random()
    if kind < 0.02:
        return NO_IMAGE, "image/jpeg", None
    if kind < 0.7:
        (i,) = rng.integers(len(files), size=1).tolist()
        return files[i], "image/png", [i]
    chosen = rng.integers(len(files), size=rng.integers(2, 9)).tolist()
    if kind < 0.9:
        parts = [
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            + files[i]
            + b"\r\n"
            for i in chosen
        ]
        return b"".join(parts) + b"--x--\r\n", "multipart/form-data; boundary=x", chosen
    images = [base64.b64encode(files[i]).decode() for i in chosen]
    return json.dumps({"images": images}).encode(), "application/json", chosen


def resident(pid: int) -> float:
    """MB (2^20 bytes) that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")


def processor_seconds(pid: int) -> float:
    """What a process has used of all processors; others on the machine do not change it much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
