"""`tulip score`: the table, what it refuses, and that it can be trusted after trouble."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import Result

import tulip_ood
from tulip_ood.data.lock import locked
from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.scores import NOT_FINITE
from tulip_ood.detectors.saving import read_header
from tulip_ood.models.spec import load_model

Tulip = Callable[..., Result]
PREPARED = ("--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
MODEL = ("--model", "tulip_tiny:make")


def test_the_table_is_what_predict_says(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    file = detectors / "tulip.safetensors"
    result = tulip("score", file, "test", "ood", "--out", out, *MODEL, "--part-rows", "17")
    assert result.exit_code == 0, result.output
    table = pq.read_table(out)
    source = open_sources(["test", "ood"], classes=read_header(file)["classes"])
    prepared = Preprocess.from_json(read_header(file)["preprocess"])
    rows = list(source.read())
    x = prepared.normalise(np.stack([prepared.pixels(raw) for _, raw in rows]))
    expected = tulip_ood.load(file, load_model("tulip_tiny:make").module).predict(x)
    assert table["row"].to_pylist() == list(range(90))
    assert table["path"].to_pylist() == [row.path for row, _ in rows]
    assert table["label"].to_pylist() == [row.label for row, _ in rows]
    assert table["label"].null_count == 30
    assert table["prediction"].to_pylist() == expected.label.tolist()
    np.testing.assert_allclose(table["score"].to_numpy(), expected.score, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(table["p_value"].to_numpy(), expected.p_value, atol=0.02)
    assert table["accepted"].to_pylist() == expected.accepted.tolist()
    tops = torch.tensor(table["top_probs"].to_pylist())
    expected_tops = expected.probs.sort(descending=True)[0].float()
    torch.testing.assert_close(tops, expected_tops, atol=1e-4, rtol=0)
    assert table["error"].null_count == 90
    assert f"{sum(table['accepted'].to_pylist())} accepted" in result.stdout


def test_equal_runs_give_equal_files(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for out in outs:
        base = ["score", detectors / "tulip.safetensors", "test", "--out", out, *MODEL]
        assert tulip(*base, "--part-rows", "7", "--batch-size", "4").exit_code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_unreadable_files_are_rows_with_a_reason(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for i in range(9):
        good = (project / "test" / "red" / f"{i:03d}.png").read_bytes()
        (folder / f"{i}.png").write_bytes(good if i % 3 else good[: 40 * i])
    out, found = tmp_path / "scores.parquet", tmp_path / "scores.json"
    base = ["score", detectors / "msp.safetensors", folder, "--out", out, *MODEL]
    result = tulip(*base, "--part-rows", "2", "--json", found)
    assert result.exit_code == 0, result.output
    rows = pq.read_table(out).to_pylist()
    assert [row["row"] for row in rows if row["error"]] == [0, 3, 6]
    for row in rows:
        missing = row["score"] is None
        assert missing == (row["prediction"] is None) == (row["error"] is not None)
        assert not (missing and row["accepted"])
    assert "3 without a score" in result.stdout
    assert "the file is empty (0 bytes)" in result.stderr
    told = json.loads(found.read_text())
    assert (told["rows"], told["errors"], len(told["first_errors"])) == (9, 3, 3)


def test_nothing_readable_at_all(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.png").touch()
    out = tmp_path / "scores.parquet"
    result = tulip("score", detectors / "msp.safetensors", tmp_path / "x", "--out", out, *MODEL)
    assert result.exit_code == 1
    assert pq.read_table(out)["error"].to_pylist() == ["the file is empty (0 bytes)"]


def test_arrays_with_nan(tulip: Tulip, detectors: Path, tmp_path: Path, project: Path) -> None:
    x = np.load(project / "ready.npz")["x"].copy()
    x[4, 0, 0, 0] = np.nan
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "tulip.safetensors", tmp_path / "x.npz", "--out", out, *MODEL]
    assert tulip(*base).exit_code == 0
    rows = pq.read_table(out).to_pylist()
    assert [row["error"] for row in rows] == [NOT_FINITE if i == 4 else None for i in range(60)]
    assert rows[4]["score"] is None
    assert rows[4]["path"].endswith("x.npz#4")


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


def test_a_detector_that_changes_under_way(
    tulip: Tulip, detectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are what the table is of: neither a mixture nor a wrong name for it."""
    from tulip_ood.cluster import job as module

    file = tmp_path / "d.safetensors"
    file.write_bytes((detectors / "msp.safetensors").read_bytes())
    whole = module.describe_inputs

    def meanwhile(source: object) -> object:
        file.write_bytes((detectors / "tulip.safetensors").read_bytes())
        return whole(source)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "describe_inputs", meanwhile)
    result = tulip("score", file, "test", "--out", tmp_path / "x.parquet", *MODEL)
    assert result.exit_code == 1
    assert "was changed a moment ago" in result.stderr
    assert not (tmp_path / "x.parquet").exists()


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


def test_where_the_network_may_come_from(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    result = tulip("score", detectors / "msp.safetensors", "test", "--out", out)
    assert result.exit_code == 2
    assert "give --model tulip_tiny:make" in result.stderr
    model = load_model("tulip_tiny:make").module
    x, y = torch.randn(60, 3, 8, 8), torch.randint(3, (60,))
    with pytest.warns(tulip_ood.TulipWarning):
        detector = tulip_ood.detectors.MSP(model).fit([(x, y)])
    python = tmp_path / "python.safetensors"
    detector.save(python)
    result = tulip("score", python, "test", "--out", out)
    assert (result.exit_code, "fitted from Python" in result.stderr) == (2, True)
    result = tulip("score", python, "test", "--out", out, *MODEL)
    assert (result.exit_code, "does not say how images are prepared" in result.stderr) == (2, True)
    assert tulip("score", python, "ready.npz", "--out", out, *MODEL).exit_code == 0
    detector.provenance["model_spec"] = "timm:resnet18"
    detector.save(python)
    result = tulip("score", python, "ready.npz", "--out", tmp_path / "other.parquet")
    assert (result.exit_code, "needs the package timm" in result.stderr) == (2, True)


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


def test_another_network_is_refused(tulip: Tulip, detectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", "test", "--out", out]
    result = tulip(*base, "--model", "tulip_tiny:changed")
    assert result.exit_code == 1
    assert "other weights" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], "there is no file or folder gone"),
        (["test", "ready.npz"], "cannot go into one run"),
        (["test", "--device", "magic"], "cannot be used here"),
        (["test", "--out", "gone/x.parquet"], "--out: there is no folder gone"),
        (["test", "--out", "scores.csv"], "which such a name hides; name it scores.parquet"),
        (["test", "--model", "x.pth"], "weights_only"),
        (["test", "--actors", "4"], "--actors says nothing to --engine local"),
        (["test", "--address", "auto"], "--address says nothing to --engine local"),
        (["test", "--workers", "4", "--engine", "ray"], "--workers says nothing to --engine ray"),
    ],
)
def test_wrong_use(
    tulip: Tulip, detectors: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    base = ["score", detectors / "msp.safetensors", "--out", tmp_path / "x.parquet", *MODEL]
    result = tulip(*base, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_class_folders_of_other_names_have_no_truth(
    tulip: Tulip, detectors: Path, tmp_path: Path, project: Path
) -> None:
    for colour in ("red", "violet"):
        (tmp_path / "in" / colour).mkdir(parents=True)
        image = (project / "test" / "red" / "000.png").read_bytes()
        (tmp_path / "in" / colour / "a.png").write_bytes(image)
    out = tmp_path / "scores.parquet"
    base = ["score", detectors / "msp.safetensors", tmp_path / "in", "--out", out, *MODEL]
    assert tulip(*base).exit_code == 0
    assert pq.read_table(out)["label"].to_pylist() == [2, None]


def test_folders_that_are_not_the_classes_give_no_truth(
    tulip: Tulip, tmp_path: Path, project: Path
) -> None:
    """A detector that knows no class names must not take any two folders for classes 0 and 1."""
    for name in ("holiday", "work"):
        (tmp_path / "in" / name).mkdir(parents=True)
        image = (project / "test" / "red" / "000.png").read_bytes()
        (tmp_path / "in" / name / "a.png").write_bytes(image)
    detector, out = tmp_path / "d.safetensors", tmp_path / "scores.parquet"
    base = ["calibrate", "tulip_tiny:make", "--data", "images.npz", "--out", detector]
    assert tulip(*base, "--method", "msp", *PREPARED).exit_code == 0
    result = tulip("score", detector, tmp_path / "in", "--out", out, *MODEL)
    assert result.exit_code == 0
    assert "2 class folders do not fit 3 outputs" in result.stderr
    assert pq.read_table(out)["label"].to_pylist() == [None, None]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_other_tasks_from_end_to_end(
    tulip: Tulip, tmp_path: Path, project: Path, task: str
) -> None:
    held = np.load(project / "ready.npz")
    y = held["y"] % 2 if task == "binary" else held["x"].mean(axis=(1, 2, 3))
    np.savez(tmp_path / "x.npz", x=held["x"], y=y)
    detector, out = tmp_path / "d.safetensors", tmp_path / "scores.parquet"
    base = ["calibrate", "tulip_tiny:single", "--data", tmp_path / "x.npz", "--out", detector]
    result = tulip(*base, "--task", task, "--samples", "2", "--j", "1", "--recipe", "balanced")
    assert result.exit_code == 0, result.output
    place = ["--out", out, "--model", "tulip_tiny:single"]
    assert tulip("score", detector, tmp_path / "x.npz", *place).exit_code == 0
    rows = pq.read_table(out).to_pylist()
    kind = int if task == "binary" else list
    assert all(isinstance(row["label"], kind) for row in rows)
    assert all(isinstance(row["prediction"], kind) for row in rows)
    assert all(row["score"] is not None for row in rows)


def test_dense_detectors_have_no_table(tulip: Tulip, tmp_path: Path, project: Path) -> None:
    held = np.load(project / "ready.npz")
    labels = np.repeat(held["y"], 64).reshape(60, 8, 8)
    np.savez(tmp_path / "x.npz", x=held["x"], y=labels)
    detector = tmp_path / "d.safetensors"
    base = ["calibrate", "tulip_tiny:dense", "--data", tmp_path / "x.npz", "--out", detector]
    result = tulip(*base, "--task", "dense", "--method", "ent")
    assert result.exit_code == 0, result.output
    place = ["--out", tmp_path / "s.parquet", "--model", "tulip_tiny:dense"]
    result = tulip("score", detector, tmp_path / "x.npz", *place)
    assert (result.exit_code, "every position" in result.stderr) == (2, True)
