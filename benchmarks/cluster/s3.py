"""A lake on S3: images, parquet, npz and lists read from there, the table written to there.

    make evidence-s3 MOTO=…/bin/moto_server      # writes s3.json beside this file

S3 is moto's server on this machine (`pip install 'moto[server]'` in an environment of its own).
The inputs are on this machine, too, and `tulip score` makes a table of them here. Then both engines
read `s3://` and write `s3://`:

- `local`, `ray`: undisturbed;
- `killed`: SIGKILL after a third and after two thirds of the parts; the same command again;
- `twice`: two processes with the same command at the same time;
- `taken_over`: while a job runs, another one (another batch size) replaces it with `--overwrite`:
  the first must stop, the second's table must be its own;
- `refused`: a table of another job there, one file instead of parts, a bucket that does not exist.

S3 renames nothing: a part is one object; `_manifest.json`, written last, says that all are there.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import setting
from pyarrow import fs

IMAGES, BAD, PART = 600, 6, 50
BUCKET = "lake"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moto", default=shutil.which("moto_server"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, store(arguments.moto) as s3:
        folder = Path(place)
        setting.detector(folder, "waiting")
        inputs = lay_out(folder, s3)
        found = run(folder, inputs, s3)
    (setting.HERE / "s3.json").write_text(json.dumps(found, indent=1) + "\n")


@contextmanager
def store(moto: str) -> Iterator[fs.FileSystem]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([moto, "-H", "127.0.0.1", "-p", str(port)], **quiet)
    try:
        wait_for(port)
        s3, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}/?allow_bucket_creation=true")
        s3.create_dir(BUCKET)
        yield s3
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("moto's server did not start")


def lay_out(folder: Path, s3: fs.FileSystem) -> list[str]:
    """Inputs of every kind here, and the same there; their names below either."""
    root = folder / "lake"
    root.mkdir()
    images = setting.images(root, IMAGES, BAD)
    (images / "000003.png").rename(images / "eine Tülpe & 50 %.png")
    (root / "tables").mkdir()
    encoded = [path.read_bytes() for path in sorted(images.iterdir())[:60]]
    for i in range(3):
        table = pa.table({"image": encoded[20 * i : 20 * i + 20]})
        pq.write_table(table, root / "tables" / f"{i}.parquet", row_group_size=7)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(root / "more.npz", x=pixels)
    listed = [f"{images.name}/{i:06d}.png" for i in range(10, 30)]
    (root / "list.txt").write_text("\n".join([*listed, f"{images.name}/missing.png"]) + "\n")
    fs.copy_files(str(root), f"{BUCKET}/lake", destination_filesystem=s3)
    return [images.name, "tables", "more.npz", "list.txt"]


def command(folder: Path, inputs: list[str], out: str, *more: str) -> list[str]:
    given = [sys.executable, "-m", "tulip_ood", "score", str(folder / "waiting.safetensors")]
    given += [*inputs, "--out", out, "--model", "setting:waiting", "--partitioned"]
    return [*given, "--part-rows", str(PART), *more]


def score(*given: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    done = subprocess.run(command(*given), cwd=setting.HERE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return {"seconds": round(time.perf_counter() - begun, 1)}


def run(folder: Path, inputs: list[str], s3: fs.FileSystem) -> dict[str, Any]:
    here = [str(folder / "lake" / name) for name in inputs]
    there = [f"s3://{BUCKET}/lake/{name}" for name in inputs]
    score(folder, here, str(folder / "expected"))
    expected = pq.read_table(folder / "expected")
    found: dict[str, Any] = {"rows": len(expected), "part_rows": PART}
    ray = ("--engine", "ray", "--actors", "2")
    for name, engine in (("local", ()), ("ray", ray)):
        told = score(folder, there, f"s3://{BUCKET}/{name}", *engine)
        found[name] = told | compare(s3, name, expected)
    for name, engine in (("killed", ()), ("killed_ray", ray)):
        told = {"parts_when_killed": killed(folder, there, name, s3, engine)}
        found[name] = told | compare(s3, name, expected)
    found["twice"] = twice(folder, there, "twice") | compare(s3, "twice", expected)
    found["taken_over"] = taken_over(folder, there, "over", s3) | compare(s3, "over", expected)
    found["refused"] = refused(folder, there)
    found["load"] = round(os.getloadavg()[0], 1)
    return found


def compare(s3: fs.FileSystem, name: str, expected: pa.Table) -> dict[str, Any]:
    """What is there against the table of this machine; paths differ by their beginning."""
    entries = s3.get_file_info(fs.FileSelector(f"{BUCKET}/{name}"))
    names = [entry.base_name for entry in entries if entry.is_file]
    table = pq.read_table(f"{BUCKET}/{name}", filesystem=s3)
    scores = [np.array(t["score"].to_pylist(), dtype=float) for t in (table, expected)]
    known = ~np.isnan(scores[1])
    same = ("row", "prediction", "accepted", "top_labels", "error")
    ends = [[Path(p).name for p in t["path"].to_pylist()] for t in (table, expected)]
    return {
        "parts": sum(name.startswith("part-") for name in names),
        "other_objects": sorted(name for name in names if not name.startswith("part-")),
        "every_row_once": table["row"].to_pylist() == list(range(len(expected))),
        "without_a_score": int((~known).sum()),
        "other_columns_equal": all(
            table[c].to_pylist() == expected[c].to_pylist() for c in same
        ) and ends[0] == ends[1],
        "largest_difference_of_a_score": float(np.abs(scores[0] - scores[1])[known].max()),
    }  # fmt: skip


def parts(s3: fs.FileSystem, name: str) -> int:
    there = s3.get_file_info(fs.FileSelector(f"{BUCKET}/{name}", allow_not_found=True))
    return sum(entry.base_name.startswith("part-") for entry in there)


def started(
    folder: Path, there: list[str], name: str, *more: str, milliseconds: int = 1
) -> subprocess.Popen[bytes]:
    given = command(folder, there, f"s3://{BUCKET}/{name}", *more)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"MILLISECONDS": str(milliseconds)}
    return subprocess.Popen(given, cwd=setting.HERE, env=environment, **pipes)


def until(process: subprocess.Popen[bytes], s3: fs.FileSystem, name: str, count: int) -> None:
    while parts(s3, name) < count:
        if process.poll() is not None:
            sys.exit("the job ended before it was disturbed")
        time.sleep(0.02)


def killed(
    folder: Path, there: list[str], name: str, s3: fs.FileSystem, engine: tuple[str, ...]
) -> list[int]:
    told = []
    for mark in (5, 10):
        process = started(folder, there, name, *engine)
        until(process, s3, name, mark)
        process.send_signal(signal.SIGKILL)
        process.wait()
        told.append(parts(s3, name))
    score(folder, there, f"s3://{BUCKET}/{name}", *engine)
    return told


def twice(folder: Path, there: list[str], name: str) -> dict[str, Any]:
    both = [started(folder, there, name) for _ in range(2)]
    return {"exit_codes": [process.wait() for process in both]}


def taken_over(folder: Path, there: list[str], name: str, s3: fs.FileSystem) -> dict[str, Any]:
    first = started(folder, there, name, "--batch-size", "32", milliseconds=40)
    until(first, s3, name, 4)
    second = started(folder, there, name, "--overwrite")
    return {"exit_codes": [first.wait(), second.wait()]}


def refused(folder: Path, there: list[str]) -> dict[str, str]:
    one_file = command(folder, there, f"s3://{BUCKET}/one.parquet")
    one_file.remove("--partitioned")
    asked = {
        "another_job": command(folder, there[:1], f"s3://{BUCKET}/local"),
        "one_file": one_file,
        "no_such_bucket": command(folder, there[1:2], "s3://no-such-bucket/scores"),
        "no_such_input": command(folder, [f"s3://{BUCKET}/nothing"], f"s3://{BUCKET}/x"),
    }
    told = {}
    for name, given in asked.items():
        done = subprocess.run(given, cwd=setting.HERE, capture_output=True, text=True)
        told[name] = f"{done.returncode}: {done.stderr.strip().splitlines()[-1]}"
    return told


if __name__ == "__main__":
    main()
