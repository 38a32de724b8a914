"""`tulip score`: where its table may lie, and what must not become of what lies there already."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import Result

from tulip_ood.data.lock import locked

Tulip = Callable[..., Result]
MODEL = ("--model", "tulip_tiny:make")


def test_a_finished_output_is_left_alone(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--out", out, *MODEL]
    assert tulip(*base).exit_code == 0
    before = os.stat(out)
    (tmp_path / "scores.parquet.parts").mkdir()  # not of this run: stays
    result = tulip(*base)
    assert result.exit_code == 0
    assert "finished already" in result.stdout
    assert os.stat(out) == before
    assert sorted(os.listdir(tmp_path)) == ["scores.parquet", "scores.parquet.parts"]


def test_another_run_is_refused_without_overwrite(
    tulip: Tulip, detectors: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--out", out, *MODEL]
    assert tulip(*base).exit_code == 0
    for other, words in (
        ([detectors / "tulip.safetensors", "test"], "detector differ"),
        ([detectors / "msp.safetensors", "ood"], "inputs differ"),
        ([detectors / "msp.safetensors", "test", "--batch-size", "3"], "settings differ"),
    ):
        arguments = ["score", *other, "--out", out, *MODEL]
        result = tulip(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr
    before = out.read_bytes()
    assert tulip(*arguments, "--overwrite").exit_code == 0
    assert out.read_bytes() != before
    assert os.listdir(tmp_path) == ["scores.parquet"]


def test_a_changed_input_is_another_run(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    image = place / "a.png"
    image.write_bytes((project / "test" / "red" / "000.png").read_bytes())
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", place, "--out", out, *MODEL]
    assert tulip(*base).exit_code == 0
    os.utime(image, ns=(1, 1))
    result = tulip(*base)
    assert result.exit_code == 2
    assert "inputs differ" in result.stderr


def test_two_runs_at_once_do_not_harm_each_other(
    tulip: Tulip, detectors: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--out", out, *MODEL]
    with locked(f"{out}.lock", "out"):
        result = tulip(*base)
    assert result.exit_code == 1
    assert f"another run (process {os.getpid()}) is writing" in result.stderr
    assert os.listdir(tmp_path) == []
    assert tulip(*base).exit_code == 0


def test_a_table_behind_a_uri(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    """`file://` goes the way of an object store: no rename, no lock, a manifest at the end."""
    base = ["score", detectors / "msp.safetensors", "test", *MODEL, "--part-rows", "17"]
    assert tulip(*base, "--out", tmp_path / "here", "--partitioned").exit_code == 0
    there = f"file://{tmp_path}/there"
    refused = tulip(*base, "--out", there)
    assert (refused.exit_code, "--partitioned" in refused.stderr) == (2, True)
    (tmp_path / "there").mkdir()
    content = (tmp_path / "here" / "part-00000000.parquet").read_bytes()
    (tmp_path / "there" / "part-00000000.parquet").write_bytes(content)
    result = tulip(*base, "--out", there, "--partitioned")
    assert (result.exit_code, "not ours" in result.stderr) == (2, True)
    (tmp_path / "there" / "_begun.json").write_bytes(
        (tmp_path / "here" / "_manifest.json").read_bytes()
    )  # as if that part had been written by a run that was killed
    result = tulip(*base, "--out", there, "--partitioned")
    assert result.exit_code == 0, result.output
    assert "17 of 60 rows are there already" in result.stderr
    tables = [pq.read_table(tmp_path / name) for name in ("here", "there")]
    assert tables[0].equals(tables[1])
    assert sorted(os.listdir(tmp_path)) == ["here", "there"]
    names = sorted(os.listdir(tmp_path / "there"))
    assert names == ["_manifest.json", *(f"part-0000000{i}.parquet" for i in range(4))]
    assert "finished already" in tulip(*base, "--out", there, "--partitioned").stdout


def test_a_table_beside_the_images_is_no_class(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path
) -> None:
    import shutil

    shutil.copytree(project / "test", tmp_path / "images")
    base = ["score", detectors / "msp.safetensors", tmp_path / "images", *MODEL, "--partitioned"]
    out = tmp_path / "images" / "scores"
    assert tulip(*base, "--out", out).exit_code == 0
    again = tulip(*base, "--out", out)
    assert again.exit_code == 0, again.output
    assert "finished already" in again.stdout


def test_a_table_beside_tables_is_none_of_them(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path
) -> None:
    files = sorted((project / "test").rglob("*.png"))[:6]
    for i in range(2):
        images = [file.read_bytes() for file in files[3 * i : 3 * i + 3]]
        pq.write_table(pa.table({"image": images}), tmp_path / f"{i}.parquet")
    base = ["score", detectors / "msp.safetensors", *MODEL, "--out", tmp_path / "scores.parquet"]
    assert "6 inputs" in tulip(*base, tmp_path).stdout
    again = tulip(*base, tmp_path)
    assert again.exit_code == 0, again.output
    assert "finished already" in again.stdout
    named = tulip(*base[:-1], tmp_path / "more.parquet", tmp_path / "scores.parquet")
    assert (named.exit_code, "is a table of scores" in named.stderr) == (2, True)
    for i in range(2):
        (tmp_path / f"{i}.parquet").unlink()
    assert "holds tables of scores, and none of images" in tulip(*base, tmp_path).stderr


def test_what_is_read_is_not_written_over(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    """Not with --overwrite either: that is for tables."""
    detector, table = tmp_path / "d.safetensors", tmp_path / "in.parquet"
    detector.write_bytes((detectors / "msp.safetensors").read_bytes())
    image = Path("test/red/000.png").read_bytes()
    pq.write_table(pa.table({"image": [image] * 3}), table)
    before = detector.read_bytes(), table.read_bytes()
    (tmp_path / "link").symlink_to(table)
    base = ["score", detector, table, *MODEL, "--overwrite"]
    for place in (detector, table, tmp_path / "link"):
        result = tulip(*base, "--out", place)
        assert (result.exit_code, "is read here" in result.stderr) == (2, True)
    result = tulip(*base, "--out", tmp_path / "x.parquet", "--json", tmp_path / "x.parquet")
    assert (result.exit_code, "where --out is written" in result.stderr) == (2, True)
    for command in (
        ["monitor", table, "--json", table],
        ["export", detector, "--out", tmp_path / "a.onnx", "--json", detector],
        ["serve", detector, "--log", detector],
        ["calibrate", table, "--data", "val", "--out", table],
    ):
        result = tulip(*command)
        assert (result.exit_code, "is read here" in result.stderr) == (2, True)
    assert (detector.read_bytes(), table.read_bytes()) == before
