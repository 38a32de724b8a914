"""What dies in the middle of a job, and what becomes of the table.

    make evidence-cluster            # writes faults.json beside this file, among others

20,000 images (40 of them cut short) are scored by TULiP on a network that takes 1 ms an image, by
four workers on two Ray nodes of this machine, in shards of 250 rows:

- `undisturbed`: the table that the others are held against, itself held against the local engine's;
- `workers`: a worker is killed (SIGKILL) after every 4,000 rows;
- `node`: the second node is killed, with its workers, after 6,000 rows;
- `job`: the whole job is killed (SIGKILL) after 5,000 rows and again after 12,000, and the same
  command is run again.

`memory` of the undisturbed run: MB of the driver, and of the workers together, at every tenth.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import setting

from tulip_ood import cluster

IMAGES, BAD, ACTORS, SHARD = 20_000, 40, 4, 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        order = json.loads(arguments.job)
        score(Path(order["folder"]), order["inputs"], Path(order["out"]))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        setting.detector(folder, "waiting")
        inputs = str(setting.images(folder, arguments.images, BAD))
        found = run(folder, inputs, arguments.images)
    (setting.HERE / "faults.json").write_text(json.dumps(found, indent=1) + "\n")


def score(folder: Path, inputs: str, out: Path, done: Callable[[int], None] | None = None) -> None:
    cluster.score(
        folder / "waiting.safetensors",
        [inputs],
        out,
        model="setting:waiting",
        part_rows=SHARD,
        actors=ACTORS,
        done=done,
    )


def run(folder: Path, inputs: str, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "images": n, "damaged": BAD, "actors": ACTORS, "shard_rows": SHARD,
        "load_before": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    base = folder / "undisturbed.parquet"
    say("local engine")
    found["local"] = {"seconds": timed(lambda: local(folder, inputs, folder / "local.parquet"))}
    say("undisturbed")
    memory: list[dict[str, int]] = []
    with nodes() as (_, _):
        watch = at(range(n // 10, n + 1, n // 10), lambda: memory.append(resident()))
        seconds = timed(lambda: score(folder, inputs, base, watch))
    compared = setting.compare(base, folder / "local.parquet")
    found["undisturbed"] = {"seconds": seconds, **compared, "memory": memory}
    for name, disturbed in (("workers", workers), ("node", node), ("job", job)):
        say(name)
        out = folder / f"{name}.parquet"
        start = time.perf_counter()
        told = disturbed(folder, inputs, out, n)
        seconds = round(time.perf_counter() - start, 1)
        load = round(os.getloadavg()[0], 1)
        found[name] = {"seconds": seconds, "load": load, **told, **setting.compare(out, base)}
        say(json.dumps(found[name]))
    return found


def local(folder: Path, inputs: str, out: Path) -> None:
    command = [sys.executable, "-m", "tulip_ood", "score", str(folder / "waiting.safetensors")]
    command += [inputs, "--out", str(out), "--model", "setting:waiting", "--part-rows", f"{SHARD}"]
    subprocess.run(command, check=True, cwd=setting.HERE, stdout=subprocess.DEVNULL)


class nodes:  # noqa: N801
    """Two Ray nodes with two processors each, on this machine, and a driver that is connected."""

    def __enter__(self) -> tuple[Any, Any]:
        import ray
        from ray.cluster_utils import Cluster

        size = {"num_cpus": 2, "object_store_memory": 100_000_000}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**size, "include_dashboard": False}
        )
        second = self._cluster.add_node(**size)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._cluster.wait_for_nodes()
        return self._cluster, second

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def at(marks: Any, act: Callable[[], object]) -> Callable[[int], None]:
    """A `done` that acts once at each mark."""
    left, rows = list(marks), 0

    def done(more: int) -> None:
        nonlocal rows
        rows += more
        while left and rows >= left[0]:
            left.pop(0)
            act()

    return done


def workers(folder: Path, inputs: str, out: Path, n: int) -> dict[str, Any]:
    killed = []

    def kill() -> None:
        victim = setting.scorers(os.getpid())[0]
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    with nodes():
        score(folder, inputs, out, at(range(n // 5, n, n // 5), kill))
    return {"killed": len(killed)}


def node(folder: Path, inputs: str, out: Path, n: int) -> dict[str, Any]:
    before, after = [], []
    with nodes() as (cluster_, second):

        def kill() -> None:
            before.extend(setting.scorers(os.getpid()))
            cluster_.remove_node(second, allow_graceful=False)
            after.extend(set(before) & set(setting.scorers(os.getpid())))

        score(folder, inputs, out, at([3 * n // 10], kill))
    return {"workers_before": len(before), "workers_that_survived": len(after)}


def job(folder: Path, inputs: str, out: Path, n: int) -> dict[str, Any]:
    order = json.dumps({"folder": str(folder), "inputs": inputs, "out": str(out)})
    command = [sys.executable, __file__, "--job", order]
    parts = out.with_name(out.name + ".parts")
    told: dict[str, Any] = {"kept_rows_when_killed": [], "seconds_until_all_was_gone": []}
    for mark in (n // 4, 6 * n // 10):
        process = subprocess.Popen(command, cwd=setting.HERE)
        while len(list(parts.glob("part-*.parquet"))) < mark // SHARD:
            if process.poll() is not None:
                raise RuntimeError("the job ended before it was killed")
            time.sleep(0.02)
        below = [number for number, _, _ in setting.processes(process.pid)]
        process.kill()
        process.wait()
        told["kept_rows_when_killed"].append(SHARD * len(list(parts.glob("part-*.parquet"))))
        told["seconds_until_all_was_gone"].append(timed(partial(gone, below)))
    subprocess.run(command, check=True, cwd=setting.HERE)
    return told


def gone(processes: list[int]) -> None:
    """Waits until what a killed job had started is gone, too."""
    while any(Path(f"/proc/{number}").exists() for number in processes):
        time.sleep(0.1)


def resident() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    held = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    below = setting.processes(os.getpid())
    scorers = sum(mb for _, title, mb in below if title.startswith("ray::Scorer"))
    return {"driver": round(held), "workers": round(scorers)}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 1)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
