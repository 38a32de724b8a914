"""`tulip score`: what is lost under way ends the run, and does not fill the table with errors."""

import contextlib
import errno
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from tulip_ood.data.decoding import NOT_FETCHED, why
from tulip_ood.data.scores import check_fetched
from tulip_ood.errors import DataError

Tulip = Callable[..., Result]
PREPARED = ("--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
MODEL = ("--model", "tulip_tiny:make")


def test_a_store_that_gives_nothing_more_ends_the_run(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that run out must not make a finished table of errors."""
    from tulip_ood.data import remote

    whole, given = remote.opened, 0

    @contextlib.contextmanager
    def opened(name: str) -> Iterator[object]:
        nonlocal given
        if name.endswith(".png"):
            given += 1
            if given > 21:
                raise OSError("AWS Error ACCESS_DENIED during HeadObject operation")
        with whole(name) as file:
            yield file

    out = tmp_path / "x.parquet"
    base = ["score", detectors / "msp.safetensors", f"file://{project}/test", *MODEL]
    base += ["--out", out, "--part-rows", 20, "--workers", 0, "--batch-size", 20]
    with monkeypatch.context() as patch:
        patch.setattr(remote, "opened", opened)
        result = tulip(*base)
    assert result.exit_code == 1
    assert "none of the 20 files from file://" in result.stderr
    assert "ACCESS_DENIED" in result.stderr
    assert "is kept: run the same command again" in result.stderr
    assert not out.exists()
    again = tulip(*base)  # what was lost within a part stays: one file was given out there
    assert "40 of 60 rows are there already" in again.stderr
    assert sum(error is not None for error in pq.read_table(out)["error"].to_pylist()) == 19


@pytest.fixture
def disk(project: Path, tmp_path: Path) -> Path:
    """A folder of sixty images, ten of them on each of six shelves; one image is damaged."""
    images = sorted((project / "test").rglob("*.png"))
    for i, image in enumerate(images):
        shelf = tmp_path / "disk" / str(i // 10)
        shelf.mkdir(parents=True, exist_ok=True)
        shutil.copy2(image, shelf / f"{i:02d}.png")
    (tmp_path / "disk" / "0" / "03.png").write_bytes(b"")
    return tmp_path / "disk"


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Do something when so many images have been decoded."""
    from tulip_ood.data import workers

    whole = workers.pixels_or_why

    def when(images: int, what: Callable[[], object]) -> None:
        decoded = itertools.count(1)

        def pixels_or_why(*how: Any) -> object:
            found = whole(*how)
            if next(decoded) == images:
                what()
            return found

        monkeypatch.setattr(workers, "pixels_or_why", pixels_or_why)

    return when


When = Callable[[int, Callable[[], object]], None]


@pytest.mark.parametrize("left", ["nothing", "mount point", "list of files", "unreadable"])
def test_a_folder_that_vanishes_ends_the_run(
    tulip: Tulip, detectors: Path, tmp_path: Path, disk: Path, after: When, left: str
) -> None:
    """Nothing of it is left, or the empty folder in which a disk was mounted, or no answer."""
    away, out = tmp_path / "away", tmp_path / "x.parquet"
    named = disk
    if left == "list of files":
        named = tmp_path / "list.txt"
        named.write_text(
            "".join(f"{file}\n" for file in [*sorted(disk.rglob("*.png")), "nowhere/gone"])
        )

    def lose() -> None:
        disk.rename(away)
        if left == "mount point":
            disk.mkdir()
        elif left == "unreadable":
            disk.symlink_to(disk)  # a loop: like a share that does not answer, it cannot be read

    after(25, lose)
    base = ["score", detectors / "msp.safetensors", named, *MODEL, "--classes", "none.txt"]
    (Path.cwd() / "none.txt").write_text("0\n")
    base += ["--out", out, "--part-rows", 20, "--workers", 0, "--batch-size", 20]
    result = tulip(*base)
    assert result.exit_code == 1
    assert f"the folder {disk} was there when this began" in result.stderr
    assert "run the same command again: what is finished is kept" in result.stderr
    assert not out.exists()
    if disk.is_symlink():
        disk.unlink()
    elif disk.exists():
        disk.rmdir()
    away.rename(disk)
    again = tulip(*base)
    assert again.exit_code == 0, again.output
    assert "20 of 6" in again.stderr
    errors = [row for row in pq.read_table(out).to_pylist() if row["error"]]
    expected = ["03.png", "gone"] if left == "list of files" else ["03.png"]
    assert [Path(row["path"]).name for row in errors] == expected


def test_files_that_vanish_one_by_one_are_rows(
    tulip: Tulip, detectors: Path, tmp_path: Path, disk: Path, after: When
) -> None:
    after(25, lambda: shutil.rmtree(disk / "3"))
    out = tmp_path / "x.parquet"
    base = ["score", detectors / "msp.safetensors", disk, *MODEL, "--out", out]
    result = tulip(*base, "--part-rows", 20, "--workers", 0, "--batch-size", 20)
    assert result.exit_code == 0, result.output
    errors = [row["error"] for row in pq.read_table(out).to_pylist() if row["error"]]
    assert errors == ["the file is empty (0 bytes)", *["there is no such file"] * 10]


def test_nothing_is_fitted_on_what_was_read_before(
    tulip: Tulip, tmp_path: Path, project: Path, after: When
) -> None:
    images = tmp_path / "val"
    shutil.copytree(project / "val", images)
    after(90, lambda: images.rename(tmp_path / "away"))
    out = tmp_path / "d.safetensors"
    base = ["calibrate", "tulip_tiny:make", "--data", images, "--out", out, "--workers", 0]
    result = tulip(*base, "--method", "msp", *PREPARED)
    assert result.exit_code == 1
    assert f"the folder {images} was there when this began" in result.stderr
    assert not out.exists()
    (tmp_path / "away").rename(images)
    after(90, lambda: images.rename(tmp_path / "away"))
    base = ["compare", "tulip_tiny:make", "--id-val", images, "--id-test", "test", "--ood", "ood"]
    result = tulip(*base, "--methods", "msp", "--workers", 0, *PREPARED)
    assert result.exit_code == 1
    assert f"the folder {images} was there when this began" in result.stderr


def test_a_disk_that_answers_no_more_is_like_a_store() -> None:
    """The file is not to blame: a part of such rows is not written."""
    reason = why(OSError(errno.EIO, "Input/output error", "/mnt/x/1.png"))
    assert reason == f"{NOT_FETCHED}: Input/output error"
    rows = [{"path": f"/mnt/x/{i}.png", "error": reason} for i in range(20)]
    with pytest.raises(DataError, match="run the same command again to go on"):
        check_fetched(rows)
    check_fetched([*rows[1:], {"path": "/mnt/x/0.png", "error": None}])
