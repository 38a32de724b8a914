"""Replicas of the server killed while clients ask: is an answer lost, or wrong?

    make evidence-cluster            # writes replicas.json beside this file, among others

`tulip serve --engine ray` with two replicas, eight clients, 2,000 requests of one image. After each
quarter of them a replica is killed (SIGKILL) while it works. No request is asked again by its
client: what the replica held is to be answered by another one.
"""

import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import setting
from asking import ask, local, png, replicas, serving

REQUESTS, CLIENTS, REPLICAS, DISTINCT = 2000, 8, 2, 100


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        file = setting.detector(Path(place), "waiting")
        with serving(file, "waiting", "--replicas", str(REPLICAS)) as (url, server):
            found = run(url, server, file)
    (setting.HERE / "replicas.json").write_text(json.dumps(found, indent=1) + "\n")


def run(url: str, server: int, file: str) -> dict[str, Any]:
    files = [png(i) for i in range(DISTINCT)]
    _, expected = local(files, file, "waiting")
    marks, lock = {REQUESTS * k // 4 for k in (1, 2, 3)}, threading.Lock()
    killed: list[int] = []
    seconds: list[float] = []

    def one(i: int) -> tuple[str, float]:
        with lock:
            if i in marks:
                killed.append(replicas(server)[0])
                os.kill(killed[-1], signal.SIGKILL)
        begun = time.perf_counter()
        status, answer = ask(url, "/v1/score", files[i % DISTINCT])
        seconds.append(time.perf_counter() - begun)
        return status, answer["results"][0]["score"] if status == "200" else float("nan")

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(one, range(REQUESTS)))
    whole = time.perf_counter() - begun
    while len(replicas(server)) < REPLICAS and time.perf_counter() < begun + whole + 60:
        time.sleep(0.5)  # another one is being started
    wanted = np.array([expected[i % DISTINCT] for i in range(REQUESTS)])
    scores = np.array([score for _, score in found])
    return {
        "requests": REQUESTS,
        "clients": CLIENTS,
        "replicas": REPLICAS,
        "killed": len(killed),
        "requests_by_status": dict(Counter(status for status, _ in found)),
        "given_to_another_replica": counted(url),
        "largest_difference_of_the_range": float(np.abs(scores - wanted).max() / np.ptp(wanted)),
        "longest_seconds_of_a_request": round(max(seconds), 1),
        "replicas_at_the_end": len(replicas(server)),
        "seconds": round(whole, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def counted(url: str) -> int:
    """How often the server has lost a replica over a request, by its own count."""
    lines = ask(url, "/metrics", b"", method="GET")[1].splitlines()
    wanted = 'tulip_failures_total{place="replicas"} '
    return sum(int(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


if __name__ == "__main__":
    main()
