"""A replica of the server killed while clients ask: which requests fail, and is any answer wrong?

    make evidence-cluster            # writes replicas.json beside this file, among others

Two replicas of `tulip_ood.cluster.serving` on Ray Serve (extra `ray-serve`), eight clients, 2,000
requests of one image. After a quarter of them one replica is killed (SIGKILL). A request that fails
is asked again, at most forty times, a quarter of a second apart.
"""

import http.client
import io
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
from urllib.parse import urlsplit

import numpy as np
import setting
from PIL import Image

import tulip_ood
from tulip_ood.cluster.serving import serve

REQUESTS, CLIENTS, REPLICAS, DISTINCT, PORT = 2000, 8, 2, 100, 8517


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        file = setting.detector(Path(place), "waiting")
        found: dict[str, Any] = {}
        serve(
            file, replicas=REPLICAS, model="setting:waiting", port=PORT,
            wait=lambda url: found.update(ask(url, file)),
        )  # fmt: skip
    (setting.HERE / "replicas.json").write_text(json.dumps(found, indent=1) + "\n")


def ask(url: str, file: str) -> dict[str, Any]:
    files = [png(i) for i in range(DISTINCT)]
    expected = scores(files, file)
    failed: Counter[str] = Counter()
    again: set[int] = set()
    killed: list[int] = []
    lock = threading.Lock()

    def one(i: int) -> float:
        with lock:
            if i == REQUESTS // 4:
                killed.append(replicas()[0])
                os.kill(killed[0], signal.SIGKILL)
        for _ in range(40):
            status, score = post(url, files[i % DISTINCT])
            if status == "200":
                return score
            with lock:
                failed[status] += 1
                again.add(i)
            time.sleep(0.25)
        return float("nan")

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = np.array(list(pool.map(one, range(REQUESTS))))
    seconds = time.perf_counter() - begun
    wanted = np.array([expected[i % DISTINCT] for i in range(REQUESTS)])
    return {
        "requests": REQUESTS,
        "clients": CLIENTS,
        "replicas": REPLICAS,
        "killed": len(killed),
        "answered": int(np.isfinite(found).sum()),
        "requests_asked_again": len(again),
        "failed_by_status": dict(failed),
        "largest_difference_of_the_range": float(np.abs(found - wanted).max() / np.ptp(wanted)),
        "replicas_at_the_end": len(replicas()),
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def replicas() -> list[int]:
    below = setting.processes(os.getpid())
    return sorted(n for n, title, _ in below if title.startswith("ray::ServeReplica"))


def post(url: str, content: bytes) -> tuple[str, float]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        connection.request("POST", "/v1/score", content, {"content-type": "image/png"})
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, 0.0
    finally:
        connection.close()
    if reply.status != 200:
        return str(reply.status), 0.0
    return "200", float(json.loads(body)["results"][0]["score"])


def png(i: int) -> bytes:
    pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def scores(files: list[bytes], file: str) -> list[float]:
    detector = tulip_ood.load(file, setting.waiting())
    x = setting.PREPARED.normalise(np.stack([setting.PREPARED.pixels(f) for f in files]))
    found: list[float] = detector.score(x).tolist()
    return found


if __name__ == "__main__":
    main()
