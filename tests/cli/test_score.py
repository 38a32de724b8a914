"""`tulip score`: the table that it writes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import Result

import tulip_ood
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


def test_names_of_files_cannot_write_on_the_terminal(
    tulip: Tulip, detectors: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b\n\x1b[2Jrow 7, über.png").write_bytes(b"x")
    result = tulip(
        "score", detectors / "msp.safetensors", tmp_path / "in", "--out", tmp_path / "x.parquet",
        *MODEL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert r"/in/b\n\x1b[2Jrow 7, über.png: this is no image" in result.stderr
    assert "\x1b" not in result.stderr
    gone = tulip("score", detectors / "msp.safetensors", "\x1b[2J", "--out", tmp_path / "y.parquet")
    assert "\x1b" not in gone.stderr


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
