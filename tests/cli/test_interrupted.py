"""Killed or interrupted in the middle, then run again: nothing lost, nothing scored twice."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.saving import read_header

Tulip = Callable[..., Result]
PART_ROWS = 4


class Run:
    """`tulip score` on the test images in a process of its own, with a diary.

    `wait_at`: from the third file of this pattern on, the network takes a minute for a batch.
    """

    def __init__(
        self, project: Path, detector: Path, out: Path, diary: Path, wait_at: str = ""
    ) -> None:
        self.diary = diary
        arguments = ["score", str(detector), "test", "--out", str(out)]
        arguments += ["--model", "tulip_tiny:make", "--part-rows", f"{PART_ROWS}"]
        command = [sys.executable, "-c", "from tulip_ood.cli import main; main()"]
        self.process = subprocess.Popen(
            [*command, *arguments, "--batch-size", "2"],
            cwd=project,
            env={**os.environ, "DIARY": str(diary), "WAIT_AT": wait_at, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is ignored by what a shell has put in the background, tests as well.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for_parts(self, folder: Path, n: int) -> None:
        end = time.monotonic() + 30
        while len(list(folder.glob("part-*.parquet"))) < n:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)

    def stop(self, how: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(how)
        return self.finish()

    def finish(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def seen(self) -> list[str]:
        return self.diary.read_text().split()


@pytest.fixture
def images(tulip: Tulip, detectors: Path) -> list[str]:
    """What the diary says of every row."""
    prepared = Preprocess.from_json(read_header(detectors / "msp.safetensors")["preprocess"])
    rows = [prepared.pixels(raw) for _, raw in open_sources(["test"]).read()]
    x = prepared.normalise(np.stack(rows))
    return [hashlib.sha256(row.float().numpy().tobytes()).hexdigest() for row in x]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_and_resumed(
    tulip: Tulip,
    project: Path,
    detectors: Path,
    tmp_path: Path,
    images: list[str],
    how: signal.Signals,
) -> None:
    detector, out = detectors / "msp.safetensors", tmp_path / "scores.parquet"
    parts = tmp_path / "scores.parquet.parts"
    first = Run(project, detector, out, tmp_path / "first", f"{parts}/part-*.parquet")
    first.wait_for_parts(parts, 3)
    code, errors = first.stop(how)
    kept = sorted(path.name for path in parts.glob("part-*.parquet"))
    assert not out.exists()
    assert 3 <= len(kept) < len(images) // PART_ROWS
    if how == signal.SIGINT:
        assert code == 130
        assert f"{len(kept) * PART_ROWS} of {len(images)} rows are kept" in errors
        assert "run the same command again" in errors
    else:
        assert code == -signal.SIGKILL
        (parts / f"part-{len(kept):08d}.parquet.1.partial").write_bytes(b"half")

    second = Run(project, detector, out, tmp_path / "second")
    code, errors = second.finish()
    assert code == 0, errors
    assert f"{len(kept) * PART_ROWS} of {len(images)} rows are there already" in errors
    rows_kept = len(kept) * PART_ROWS
    again = second.seen()
    assert not set(images[:rows_kept]) & set(again)
    for image in images[rows_kept:]:
        assert again.count(image) == 1

    whole = tmp_path / "whole.parquet"
    base = ["score", detector, "test", "--model", "tulip_tiny:make", "--batch-size", "2"]
    assert tulip(*base, "--part-rows", PART_ROWS, "--out", whole).exit_code == 0
    assert pq.read_table(out).equals(pq.read_table(whole))
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()
    assert not Path(f"{out}.lock").exists()


def test_stopped_twice(
    tulip: Tulip, detectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C again, while rows are counted, is not told that there are none."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tulip_ood.data.parts.Parts.merge", stop)
    monkeypatch.setattr("tulip_ood.data.parts.Parts.kept", property(stop))
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--model", "tulip_tiny:make"]
    result = tulip(*base, "--out", out)
    assert result.exit_code == 130
    assert f"finished parts are kept in {out}.parts: run the same command" in result.stderr


def test_an_error_leaves_no_thread_behind(
    tulip: Tulip, detectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tulip_ood.data.parts.Parts.put", full)
    base = ["score", detectors / "msp.safetensors", "test", "--model", "tulip_tiny:make"]
    result = tulip(*base, "--out", tmp_path / "x.parquet", "--part-rows", 4, "--workers", 2)
    assert (result.exit_code, "No space left" in result.stderr) == (1, True)
    assert not [one for one in threading.enumerate() if one.name.startswith("tulip-")]
