"""`tulip bench` and `tulip reproduce openood` from the command line."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.benchmark import bench_root
from typer.testing import Result

from tulip_ood.models.resnet import ResNet18Small

Tulip = Callable[..., Result]
ONE, TWO = "tests.benchmark.bench_root:make_one", "tests.benchmark.bench_root:make_two"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_root.make_root(tmp_path_factory.mktemp("root") / "data")


@pytest.fixture
def finished(tulip: Tulip, root: Path, tmp_path: Path) -> Path:
    out = tmp_path / "bench"
    result = tulip(
        "bench", "cifar10", "--data", root, "--checkpoint", ONE, TWO, "--methods",
        "msp,knn,tulip[recipe=balanced],mcd", "--track", "both", "--limit", "40", "--out", out,
        "--resamples", "20", "--json", tmp_path / "all.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "Track val" in result.stdout
    assert "Track train" in result.stdout
    assert "at most 40 images of each set" in result.stdout
    assert "mcd (MC-Dropout needs dropout layers" in result.stdout
    return out


def test_a_whole_benchmark(tulip: Tulip, finished: Path, root: Path, tmp_path: Path) -> None:
    rows = pq.read_table(finished / "results.parquet").to_pylist()
    assert {row["method"] for row in rows} == {"ent", "msp", "knn", "tulip[recipe=balanced]"}
    assert {row["track"] for row in rows} == {"val", "train"}
    assert {row["limit"] for row in rows} == {40}
    environment = json.loads((finished / "results.environment.json").read_text())
    assert environment["versions"][0]["torch"] == torch.__version__
    written = json.loads((tmp_path / "all.json").read_text())
    assert len(written["results"]) == len(rows)
    assert list(written["skipped"]) == ["mcd (val)"]
    before = (finished / "results.parquet").read_bytes()
    result = tulip(
        "bench", "cifar10", "--data", root, ONE, TWO, "--methods", "msp", "--limit", "40",
        "--out", finished, "--resamples", "20",
    )  # fmt: skip
    assert result.exit_code == 0
    assert (finished / "results.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("form", "sign"),
    [("text", "──"), ("markdown", "|---"), ("latex", "\\toprule"), ("html", "<table")],
)
def test_tables(form: str, sign: str, tulip: Tulip, finished: Path, tmp_path: Path) -> None:
    base = ["bench", "table", finished, "--format", form, "--resamples", "20"]
    for more in ([], ["--what", "sets"], ["--what", "shift", "--track", "val"]):
        result = tulip(*base, *more)
        assert (result.exit_code, sign in result.stdout) == (0, True), result.stderr
    result = tulip(*base, "--out", tmp_path / "table")
    assert sign in (tmp_path / "table").read_text()
    result = tulip("bench", "table", finished, "--what", "leaderboard")
    assert {row["method"] for row in csv.DictReader(io.StringIO(result.stdout))} >= {"knn", "msp"}


def test_wrong_use(tulip: Tulip, root: Path, tmp_path: Path) -> None:
    base = ["bench", "cifar10", "--data", root, "--out", tmp_path / "out"]

    def refused(*arguments: Any) -> str:
        result = tulip(*arguments)
        assert result.exit_code == 2, result.stdout
        return " ".join(result.stderr.split())

    assert "name at least one network" in refused(*base)
    assert "--track must be" in refused(*base, ONE, "--track", "test")
    assert "unknown method 'energy'" in refused(*base, ONE, "--methods", "energy")
    assert "'x' is no whole number" in refused(*base, ONE, "--seeds", "0,x")
    assert "no benchmark root" in refused("bench", "cifar10", "--data", tmp_path, ONE)
    assert "10 outputs, but cifar100 has 100" in refused(
        "bench", "cifar100", "--data", root, ONE, "--out", tmp_path / "out"
    )
    assert "--format must be" in refused("bench", "table", tmp_path, "--format", "pdf")
    assert "holds no benchmark" in refused("bench", "table", tmp_path)
    assert "tune must be" in refused(*base, ONE, "--tune", "mnist")


def test_openoods_own_checkpoints(tulip: Tulip, root: Path, tmp_path: Path) -> None:
    """A tree as OpenOOD's scripts make it, with a network of its architecture."""
    shutil.copytree(root, tmp_path / "openood")
    place = tmp_path / "openood" / "results" / "cifar10_resnet18_32x32_base_e100_lr0.1_default"
    for seed in (0, 1):
        (place / f"s{seed}").mkdir(parents=True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            torch.save(ResNet18Small(10).state_dict(), place / f"s{seed}" / "best.ckpt")
    base = ["reproduce", "openood", "--root", tmp_path / "openood", "--out", tmp_path / "out"]
    result = tulip(
        *base, "--id", "cifar10", "--methods", "msp,ebo", "--limit", "10", "--track", "val",
        "--resamples", "20",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "out" / "leaderboard-cifar10.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["method"] for row in rows} == {"ent", "msp", "ebo"}
    table = pq.read_table(tmp_path / "out" / "cifar10" / "results.parquet").to_pylist()
    assert {row["training_seed"] for row in table} == {0, 1}
    result = tulip(*base, "--id", "cifar100")
    assert (result.exit_code, "no checkpoints for cifar100" in result.stderr) == (2, True)


def test_what_a_network_says_of_its_images_goes_before_the_protocol(
    tulip: Tulip, root: Path, tmp_path: Path
) -> None:
    def mean_score(*more: str) -> float:
        out = tmp_path / "-".join(["out", *more]).replace(",", "_")
        result = tulip(
            "bench", "cifar10", "--data", root, ONE, "--methods", "msp", "--limit", "20",
            "--resamples", "20", "--out", out, *more,
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        rows = pq.read_table(out / "results.parquet").to_pylist()
        return float(np.mean([row["value"] for row in rows if row["metric"] == "nll"]))

    assert mean_score() != mean_score("--mean", "0.1,0.1,0.1", "--std", "0.5,0.5,0.5")
