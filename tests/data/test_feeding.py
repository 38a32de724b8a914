"""Images decoded by threads or processes: the same batches, the same reasons, nothing left over."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tulip_ood.data import workers
from tulip_ood.data.batches import Batch, batches
from tulip_ood.data.decoding import Raw
from tulip_ood.data.feeding import ahead
from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import ImageFiles, Row
from tulip_ood.data.workers import Decoders
from tulip_ood.errors import InputError

PREPROCESS = Preprocess(40, 32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several kinds, and files that are none."""
    place = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for i in range(30):
        shape = (50 + i, 70 - i, 3)
        image = Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))
        image.save(place / f"{i:02d}.{'jpg' if i % 2 else 'png'}")
    (place / "07.jpg").write_bytes(b"")
    (place / "11.jpg").write_bytes(b"no picture")
    half = (place / "13.jpg").read_bytes()
    (place / "13.jpg").write_bytes(half[: len(half) // 2])
    (place / "30 é.png").write_bytes((place / "00.png").read_bytes())
    return place


def read(folder: Path, n: int | None, *, processes: bool | None = None) -> list[Batch]:
    source = open_sources([str(folder)])
    return list(batches(source, PREPROCESS, batch_size=7, workers=n, processes=processes))


def equal(one: list[Batch], two: list[Batch]) -> None:
    assert [(b.rows, b.labels, b.errors) for b in one] == [
        (b.rows, b.labels, b.errors) for b in two
    ]
    for a, b in zip(one, two, strict=True):
        assert (a.inputs is None) == (b.inputs is None)
        assert a.inputs is None or b.inputs is None or torch.equal(a.inputs, b.inputs)


@pytest.mark.parametrize(("n", "processes"), [(1, False), (4, False), (None, None), (2, True)])
def test_the_number_and_kind_of_workers_do_not_show(
    folder: Path, n: int | None, processes: bool | None
) -> None:
    alone = read(folder, 0)
    assert sum(len(b.errors) for b in alone) == 3
    equal(read(folder, n, processes=processes), alone)


def test_processes_take_bytes_and_leave_arrays_alone(folder: Path) -> None:
    raws: list[Raw] = [(folder / "00.png").read_bytes(), np.zeros((50, 50), np.uint8), None, b""]
    with Decoders(PREPROCESS, 1, rows=4, processes=True) as decoders:
        found = [decoders.submit(raw).result() for raw in raws]
    with Decoders(PREPROCESS, 0, rows=4) as decoders:
        expected = [decoders.submit(raw).result() for raw in raws]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_processes_are_used_where_they_pay() -> None:
    def kind(n: int, rows: int, side: int) -> str:
        decoders = Decoders(Preprocess(side, side, (0.5,), (0.5,)), n, rows=rows)
        with decoders:
            return decoders._work.__name__

    assert kind(16, 50_000, 224) == "_by_process"
    assert kind(16, 100, 224) == "_here"
    assert kind(16, 50_000, 32) == "_here"
    assert kind(2, 50_000, 224) == "_here"


def test_a_picture_that_ends_its_process_is_a_bad_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    with Decoders(PREPROCESS, 1, rows=1, processes=True) as decoders:
        found = decoders.submit(str(folder / "00.png")).result()
    assert found == "decoding it ended a process twice (exit code 1)"


STRANGE = """#!{python}
import os, signal, time
from tulip_ood.data import worker
usual = worker.pixels_or_why
def pixels_or_why(preprocess, raw):
    if "deadly" in raw:
        os.kill(os.getpid(), signal.SIGKILL)
    if "slow" in raw:
        time.sleep(0.05)
    if "endless" in raw:
        time.sleep(600)
    return usual(preprocess, raw)
worker.pixels_or_why = pixels_or_why
worker._main()
"""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do what the name of a picture says."""
    script = tmp_path / "strange"
    script.write_text(STRANGE.format(python=sys.executable))
    script.chmod(0o700)
    monkeypatch.setattr(workers.sys, "executable", str(script))


def named(folder: Path, place: Path, name: str, like: str) -> str:
    copy = place / f"{name} {like}"
    copy.write_bytes((folder / like).read_bytes())
    return str(copy)


def decoded(raws: Sequence[Raw], n: int, preprocess: Preprocess = PREPROCESS) -> list[Any]:
    with Decoders(preprocess, n, rows=len(raws), processes=True) as decoders:
        futures = [decoders.submit(raw) for raw in raws]
        return [future.result(timeout=120) for future in futures]


@pytest.mark.usefixtures("strange")
def test_pictures_that_take_longer_stay_in_their_place(folder: Path, tmp_path: Path) -> None:
    kinds = ["slow" if i % 5 == 0 else "quick" for i in range(20)]
    paths = [
        named(folder, tmp_path, kind, f"{2 * (i % 15):02d}.png") for i, kind in enumerate(kinds)
    ]
    for found, expected in zip(decoded(paths, 2), decoded(paths, 0), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize("n", [1, 2])
def test_only_the_picture_that_ends_processes_is_to_blame(
    folder: Path, tmp_path: Path, n: int
) -> None:
    kinds = ["harmless"] * 12
    for i in (0, 3, 4, 11):
        kinds[i] = "deadly"
    paths = [named(folder, tmp_path, kind, f"{2 * i:02d}.png") for i, kind in enumerate(kinds)]
    for kind, found, expected in zip(kinds, decoded(paths, n), decoded(paths, 0), strict=True):
        if kind == "deadly":
            assert found == "decoding it ended a process twice (signal 9)"
        else:
            np.testing.assert_array_equal(found, expected)


def test_a_process_killed_from_outside_is_replaced(folder: Path) -> None:
    path = str(folder / "00.png")
    expected = decoded([path], 0)[0]
    with Decoders(PREPROCESS, 1, rows=6, processes=True) as decoders:
        for _ in range(3):
            for _twice in range(2):  # the first may have a process for itself
                found = decoders.submit(path).result()
                np.testing.assert_array_equal(found, expected)
            (helper,) = decoders._helpers
            os.kill(helper._process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("strange")
def test_closing_does_not_wait_for_what_was_asked(folder: Path, tmp_path: Path) -> None:
    others = children()
    endless = named(folder, tmp_path, "endless", "00.png")
    with Decoders(PREPROCESS, 2, rows=20, processes=True) as decoders:
        futures = [decoders.submit(endless) for _ in range(20)]
        while [bool(helper.asked) for helper in decoders._helpers] != [True] * 2:
            time.sleep(0.01)
        assert len(children() - others) == 2
    assert not ours()
    assert not children() - others
    assert all(future.cancelled() for future in futures)


def test_closing_does_not_wait_for_threads_that_have_not_begun(folder: Path) -> None:
    with Decoders(PREPROCESS, 1, rows=200, processes=False) as decoders:
        futures = [decoders.submit(str(folder / "00.png")) for _ in range(200)]
        futures[0].result()
    assert not ours()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()


def test_requests_and_answers_larger_than_a_pipe() -> None:
    whole = Preprocess(None, None, (0.5,) * 3, (0.5,) * 3)
    noise = np.random.default_rng(0).integers(0, 256, (900, 800, 3), dtype=np.uint8)
    stored = io.BytesIO()
    Image.fromarray(noise).save(stored, "bmp")  # 2 MB; a pipe holds one
    small = io.BytesIO()
    Image.fromarray(noise[:250]).save(small, "bmp")
    raws = [stored.getvalue(), small.getvalue(), stored.getvalue(), stored.getvalue()] * 2
    assert len(raws[0]) > workers._PIPE_BYTES
    for raw, found in zip(raws, decoded(raws, 1, whole), strict=True):
        np.testing.assert_array_equal(found, noise if len(raw) == len(raws[0]) else noise[:250])


@pytest.mark.parametrize("name", ["\ud800.png", "a\0b.png", "x" * 5000])
def test_names_that_no_file_has_are_refused_in_the_same_words(name: str) -> None:
    assert decoded([name], 1) == decoded([name], 0)


def test_a_process_that_cannot_be_started_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        decoded([str(folder / "00.png")], 1)


def test_the_limit_on_pixels_goes_along(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with Decoders(PREPROCESS, 1, rows=1, processes=True) as decoders:
        found = decoders.submit(str(folder / "00.png")).result()
    assert "more than the limit of 2,000" in str(found)


def test_no_negative_number_of_workers(folder: Path) -> None:
    with pytest.raises(InputError, match="workers must not be negative"):
        read(folder, -1)


class Broken(ImageFiles):
    """A source that fails on the way."""

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        yield from super().read(0, 9)
        raise RuntimeError("the disk is gone")


@pytest.mark.parametrize("n", [0, 2])
def test_an_error_of_the_source_comes_out(folder: Path, n: int) -> None:
    source = Broken("x", [str(folder / "00.png")] * 20, [None] * 20)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        list(batches(source, PREPROCESS, batch_size=4, workers=n))
    assert not ours()


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tulip-")]


def test_nothing_is_left_when_the_consumer_stops(folder: Path) -> None:
    others = children()  # of tests that this process has run before
    source = ImageFiles("x", [str(folder / "00.png")] * 500, [None] * 500)
    stream = batches(source, PREPROCESS, batch_size=4, workers=2, processes=True)
    next(stream)
    assert ours()
    assert len(children() - others) == 2
    stream.close()
    assert not ours()
    assert not children() - others


def children() -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_processes_end_with_the_one_that_was_killed(folder: Path) -> None:
    script = (
        "import sys, time\n"
        "from tulip_ood.data.preprocess import Preprocess\n"
        "from tulip_ood.data.workers import Decoders\n"
        "decoders = Decoders(Preprocess(8, 8, (.5,) * 3, (.5,) * 3), 1, rows=1, processes=True)\n"
        "decoders.submit(sys.argv[1]).result()\n"
        "print(decoders._helpers[0]._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(folder / "00.png")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, 0)  # it is there
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").exists() and state(pid) != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_what_is_ahead_is_stamped_in_order() -> None:
    made = []

    def items() -> Iterator[int]:
        for i in range(5):
            made.append(i)
            yield i

    assert list(ahead(items(), lambda: made[-1])) == [(i, i) for i in range(5)]
    assert not ours()


def test_a_worker_does_not_load_pytorch() -> None:
    script = "import sys, tulip_ood.data.worker; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
