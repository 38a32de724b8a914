"""`tulip serve --engine ray` as a command: answers, a new threshold, SIGTERM, what is left behind.

    make evidence-cluster            # writes serve_ray.json beside this file, among others

Two replicas. 400 images over HTTP against the local scores; then `PUT /v1/threshold` while eight
clients go on asking: after its answer every decision must follow the new threshold, in whichever
replica it was made (both must have worked), and in one that was started afterwards because another
was killed. Thresholds that are none are refused. At the end SIGTERM comes while 32 requests are
under way: all of them must be answered, the exit code be 0, and no process be left.
"""

import json
import os
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import setting
from asking import JSON, ask, gone_after, local, png, replicas, serving, ticks

IMAGES, CLIENTS, BEFORE, AFTER, UNDER_WAY = 400, 8, 0.05, 0.5, 32
NO_THRESHOLDS = ("NaN", "Infinity", '"0.1"', "0", "1", "-1", "true", "null", "[0.1]", "1e400")


def main() -> None:
    os.environ.setdefault("MILLISECONDS", "20")  # an image takes so long that some are under way
    with tempfile.TemporaryDirectory() as place:
        file = setting.detector(Path(place), "waiting")
        files = [png(i) for i in range(IMAGES)]
        begun = time.perf_counter()
        with serving(file, "waiting", "--replicas", "2") as (url, server):
            found: dict[str, Any] = {"seconds_to_start": round(time.perf_counter() - begun, 1)}
            found |= measured(url, server, file, files)
            below = [number for number, _, _ in setting.processes(server)]
            answers, asking = under_way(url, files)
            os.kill(server, signal.SIGTERM)
            begun = time.perf_counter()
        asking.join()
        seconds = round(time.perf_counter() - begun, 1)
        after, left = gone_after(below)
    found["sigterm"] = {
        "requests_under_way": UNDER_WAY,
        "answered": answers.count("200"),
        "seconds_until_the_exit": seconds,
        "processes_before": len(below),
        "processes_left": left,
        "seconds_until_all_were_gone": round(seconds + after, 1),
    }
    found["load"] = round(os.getloadavg()[0], 1)
    (setting.HERE / "serve_ray.json").write_text(json.dumps(found, indent=1) + "\n")


def measured(url: str, server: int, file: str, files: list[bytes]) -> dict[str, Any]:
    detector, scores = local(files, file, "waiting")
    told = asked(url, files)
    far = np.array([one["results"][0]["score"] for one in told])
    detector.set_threshold(false_alarm=AFTER)
    wanted = scores <= detector.threshold.value
    first = [one["results"][0]["accepted"] for one in told]
    worked = {number: ticks(number) for number in replicas(server)}
    status, new = ask(url, "/v1/threshold", body(AFTER), JSON, "PUT")
    decided = decisions(asked(url, files))
    both = [ticks(number) - before for number, before in worked.items()]
    os.kill(replicas(server)[0], signal.SIGKILL)
    while len(set(replicas(server)) - set(worked)) < 1:
        asked(url, files[:CLIENTS])
    again = decisions(asked(url, files))
    refused = [ask(url, "/v1/threshold", bad(text), JSON, "PUT")[0] for text in NO_THRESHOLDS]
    return {
        "replicas": len(worked),
        "images": len(files),
        "largest_difference_of_a_score": float(np.abs(far - scores).max()),
        "threshold": {
            "status": status,
            "equals_the_local_one": new["value"] == detector.threshold.value,
            "decisions_that_change": int((np.array(first) != wanted).sum()),
            "wrong_decisions_afterwards": int((decided != wanted).sum()),
            "ticks_of_each_replica": both,
            "wrong_decisions_with_a_replica_started_later": int((again != wanted).sum()),
            "no_thresholds": dict(zip(NO_THRESHOLDS, refused, strict=True)),
        },
    }


def asked(url: str, files: list[bytes]) -> list[Any]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(lambda content: ask(url, "/v1/score", content), files))
    assert all(status == "200" for status, _ in found), [f for f in found if f[0] != "200"][:3]
    return [answer for _, answer in found]


def decisions(answers: list[Any]) -> Any:
    return np.array([one["results"][0]["accepted"] for one in answers])


def body(false_alarm: float) -> bytes:
    return json.dumps({"false_alarm": false_alarm}).encode()


def bad(text: str) -> bytes:
    return b'{"false_alarm": ' + text.encode() + b"}"


def under_way(url: str, files: list[bytes]) -> tuple[list[str], threading.Thread]:
    """Requests that have been sent and are not answered yet."""
    answers: list[str] = []

    def all_of_them() -> None:
        with ThreadPoolExecutor(UNDER_WAY) as pool:
            asked = pool.map(lambda content: ask(url, "/v1/score", content)[0], files[:UNDER_WAY])
            answers.extend(asked)

    thread = threading.Thread(target=all_of_them)
    thread.start()
    time.sleep(0.15)
    return answers, thread


if __name__ == "__main__":
    main()
