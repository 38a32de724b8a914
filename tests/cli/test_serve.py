"""`tulip serve` as a process, `tulip monitor` on what it logged and on a table of scores."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import tulip_ood

Tulip = Callable[..., Result]
MODEL = ("--model", "tulip_tiny:make")


def started(project: Path, *arguments: object) -> "tuple[subprocess.Popen[str], int]":
    """A server of its own, and its port."""
    source = str(Path(tulip_ood.__file__).parents[1])
    paths = os.pathsep.join([source, str(project)])
    process = subprocess.Popen(
        [sys.executable, "-m", "tulip_ood", "serve", *map(str, arguments), "--port", "0"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if "listening on http://127.0.0.1:" not in line:
        process.kill()
        raise AssertionError(process.communicate()[1])
    return process, int(line.rpartition(":")[2].strip().strip("/"))


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path, body, named)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def arrived(metrics: str) -> float:
    """Images that wait, or are answered."""
    rows = [line for line in metrics.splitlines() if not line.startswith("#")]
    names = ("tulip_queue_images", 'tulip_images_total{detector="answering"')
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(names))


def test_a_server_answers_and_drains(
    tulip: Tulip, detectors: Path, project: Path, tmp_path: Path
) -> None:
    file, log, out = detectors / "tulip.safetensors", tmp_path / "log", tmp_path / "scores.parquet"
    shadow = detectors / "msp.safetensors"
    more = ["--shadow", shadow, "--log", log, "--wait-ms", "400", "--admin-token", "long enough"]
    process, port = started(project, file, *MODEL, *more)
    assert ask(port, "GET", "/healthz") == (200, b'{"status":"ok"}')
    pictures = sorted((project / "test").rglob("*.png"))
    status, body = ask(
        port, "POST", "/v1/score", pictures[0].read_bytes(), content_type="image/png"
    )
    assert status == 200
    answer = json.loads(body)["results"][0]
    assert answer["class"] in ("blue", "green", "red")
    # Six requests wait for a batch when the server is told to stop: all are answered.
    found: list[tuple[int, bytes]] = []

    def one(picture: Path) -> None:
        found.append(ask(port, "POST", "/v1/score", picture.read_bytes(), content_type="image/png"))

    threads = [threading.Thread(target=one, args=(picture,)) for picture in pictures[1:7]]
    for thread in threads:
        thread.start()
    while arrived(ask(port, "GET", "/metrics")[1].decode()) < 1 + 6:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "everything that was asked is answered" in output
    assert [status for status, _ in found] == [200] * 6
    # The same images as a table, and both for the monitor.
    result = tulip("score", file, "test", "--out", out, *MODEL)
    assert result.exit_code == 0, result.output
    table = tulip("score", file, pictures[0], "--out", tmp_path / "one.parquet", *MODEL)
    assert table.exit_code == 0
    shown = tulip("monitor", log, "--json", tmp_path / "found.json")
    assert shown.exit_code == 0, shown.output
    assert "no drift found" in shown.stdout
    written = json.loads((tmp_path / "found.json").read_text())
    assert [one["inputs"] for one in written["detectors"]] == [7, 7]
    with_file = tulip("monitor", log, out, "--detector", file)
    assert "67 inputs" in with_file.stdout  # the server and the table are one version
    alone = tulip("monitor", out)
    assert "--detector FILE" in alone.stdout
    unknown = tulip("monitor", out, "--fail")  # a script must not take that for "no drift"
    assert unknown.exit_code == 2
    assert "whether there is drift is not known" in unknown.stderr
    other = tulip("monitor", out, "--detector", detectors / "msp.safetensors")
    assert "msp.safetensors, which is another one" in other.stdout


def test_drift_can_fail_a_script(tulip: Tulip, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = {"model": "a", "calibration": list(range(100))}
    row = {"model": "a", "accepted": False, "promise": {"false_alarm": 0.05}, "time": 0.0}
    rows = [row | {"score": 1000 + i} for i in range(60)]
    log.write_text("".join(json.dumps(line) + "\n" for line in (first, *rows)))
    result = tulip("monitor", log, "--fail")
    assert result.exit_code == 1
    assert "DRIFT" in result.stdout
    assert "1970-01-01" in result.stdout
    assert "at most 5.0 % false alarms" in result.stdout
    assert tulip("monitor", log).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.safetensors", *MODEL], "there is no detector file"),
        (["DETECTOR"], "give --model"),
        (["DETECTOR", *MODEL, "--token", "short"], "at least 8"),
        (["DETECTOR", *MODEL, "--keep-images", "nowhere"], "no folder"),
        (["DETECTOR", *MODEL, "--log", "no/where"], "cannot be written"),
        (["DETECTOR", "--model", "tulip_tiny:changed"], "other weights"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    tulip: Tulip, detectors: Path, arguments: list[str], words: str
) -> None:
    file = str(detectors / "msp.safetensors")
    result = tulip("serve", *(file if part == "DETECTOR" else part for part in arguments))
    assert result.exit_code in (1, 2)
    assert words in result.stderr


def test_a_port_that_is_taken(tulip: Tulip, detectors: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = tulip("serve", detectors / "msp.safetensors", *MODEL, "--port", port)
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr


def test_replicas_have_no_log_of_their_own(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    base = ["serve", detectors / "msp.safetensors", *MODEL, "--engine", "ray"]
    result = tulip(*base, "--log", tmp_path / "log.jsonl")
    assert result.exit_code == 2
    assert "--log says nothing to --engine ray" in result.stderr
