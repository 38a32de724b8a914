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

from tulip_ood.benchmark.bench_loading import load_benchmark
from tulip_ood.benchmark.bench_networks import _name
from tulip_ood.cli import bench as bench_command
from tulip_ood.cli.bench import finish
from tulip_ood.cli.failing import Stopped
from tulip_ood.cli.progress import LogLines
from tulip_ood.errors import InputError
from tulip_ood.models.resnet import ResNet18Small

Tulip = Callable[..., Result]
ONE, TWO = "tests.benchmark.bench_root:make_one", "tests.benchmark.bench_root:make_two"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_root.make_root(tmp_path_factory.mktemp("root") / "data")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the benchmark lies that tests get copies of."""
    return tmp_path_factory.mktemp("once")


@pytest.fixture
def finished(tulip: Tulip, root: Path, once: Path, tmp_path: Path) -> Path:
    out = once / "bench"
    if not out.exists():
        result = tulip(
            "bench", "cifar10", "--data", root, "--checkpoint", ONE, TWO, "--methods",
            "msp,knn,tulip[recipe=balanced],mcd", "--track", "both", "--limit", "40", "--out", out,
            "--resamples", "20", "--json", once / "all.json",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert "Track val" in result.stdout
        assert "Track train" in result.stdout
        assert "at most 40 images of each set" in result.stdout
        assert "Networks (Net): make_one-" in result.stdout
        assert f"passes are kept in {out}/passes" in result.stderr
        assert "mcd (MC-Dropout needs dropout layers" in result.stdout
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "bench"


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
    assert all(set(each) >= {"network", "method", "findings"} for each in written["findings"])
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
    if form == "html":
        assert (tmp_path / "table").read_text().count("<html") == 1
    if form != "text":
        result = tulip(*base, "--what", "leaderboard")
        assert (result.exit_code, "is CSV and nothing else" in result.stderr) == (2, True)
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
    said = "holds no benchmark: bench.json: there is none in it. Expected a folder of `tulip bench"
    assert said in refused("bench", "table", tmp_path)
    assert "tune must be" in refused(*base, ONE, "--tune", "mnist")
    assert "1000000000" in refused(*base, ONE, "--limit", str(10**30))


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
        *base, "--methods", "msp,ebo", "--limit", "10", "--track", "val", "--resamples", "20"
    )
    assert result.exit_code == 0, result.stderr
    # ImageNet needs no checkpoint, but images.
    assert "imagenet: no validation and test images in" in " ".join(result.stderr.split())
    text = (tmp_path / "out" / "leaderboard-cifar10.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["method"] for row in rows} == {"ent", "msp", "ebo"}
    table = pq.read_table(tmp_path / "out" / "cifar10" / "results.parquet").to_pylist()
    assert {row["training_seed"] for row in table} == {0, 1}
    shutil.rmtree(place)
    result = tulip(*base)
    words = " ".join(result.stderr.split())
    assert (result.exit_code, "no checkpoints for cifar10, cifar100" in words) == (2, True)
    assert "no images of imagenet either" in words
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


def test_some_networks_alone(tulip: Tulip, finished: Path) -> None:
    base = ["bench", "table", finished, "--resamples", "20", "--track", "val"]
    result = tulip(*base, "--network", "make_two")
    assert (result.exit_code, "Network (Net): make_two-" in result.stdout) == (0, True)
    assert "make_one" not in result.stdout
    result = tulip(*base, "--network", "make_three")
    assert (result.exit_code, "no network 'make_three'" in result.stderr) == (2, True)


def test_only_the_tracks_that_were_asked_for(tulip: Tulip, root: Path, tmp_path: Path) -> None:
    base = ["bench", "cifar10", "--data", root, ONE, "--limit", 20, "--resamples", 20,
            "--out", tmp_path / "out", "--track", "train"]  # fmt: skip
    result = tulip(*base, "--methods", "msp")  # it does not learn
    assert result.exit_code == 1
    assert "nothing was computed on the track train:" in result.stderr
    result = tulip(*base, "--methods", "knn")
    assert result.exit_code == 0, result.stderr
    assert "Track train" in result.stdout
    assert "Track val" not in result.stdout
    result = tulip("bench", "table", tmp_path / "out", "--what", "leaderboard", "--track", "train")
    assert {row["method"] for row in csv.DictReader(io.StringIO(result.stdout))} == {"knn"}


def test_nothing_computed_is_a_failure_with_reasons(
    tulip: Tulip, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise InputError("the method is ill")

    monkeypatch.setattr("tulip_ood.benchmark.cell_fitting.CellFitter._make", broken)
    out = tmp_path / "out"
    result = tulip("bench", "cifar10", "--data", root, ONE, "--methods", "msp", "--limit", 20,
                   "--out", out)  # fmt: skip
    assert result.exit_code == 1
    assert "  msp (val): the method is ill" in result.stderr.splitlines()
    assert "nothing could be computed" in result.stderr
    assert not (out / "results.parquet").exists()
    result = tulip("bench", "table", out)
    assert result.exit_code == 2
    assert "  msp (val): the method is ill" in result.stderr.splitlines()
    assert "nothing is finished" in result.stderr


def test_stopped_while_tables_are_made(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    found = load_benchmark(finished)
    monkeypatch.setattr(bench_command, "_pooled", stop)
    with pytest.raises(
        Stopped, match=r"all numbers are in .*results\.parquet, and tulip bench tab"
    ):
        finish(found, str(finished), track="val", resamples=20, json=None)
    monkeypatch.setattr("tulip_ood.benchmark.tidy.tidy", stop)
    with pytest.raises(Stopped, match=r"every score is in .*bench, and tulip bench table"):
        finish(found, str(finished), track="val", resamples=20, json=None)


def test_a_line_a_minute_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    log = LogLines(clock=lambda: now)
    for now in (1.0, 59.0, 60.0, 61.0, 119.0, 121.0):
        log("scoring svhn", int(now), 1_000)
    assert capsys.readouterr().err == "scoring svhn: 60 of 1,000\nscoring svhn: 121 of 1,000\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    watched = LogLines(seconds=0.0, clock=lambda: now)
    watched("scoring svhn", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("tulip_ood.models.resnet:ResNet18Small", "ResNet18Small"),
        ("a.b:make_one", "make_one"),
        ("timm:resnet50.a1_in1k", "resnet50.a1_in1k"),
        ("torchvision:resnet50@IMAGENET1K_V1", "resnet50@IMAGENET1K_V1"),
        ("folder/net.v2.safetensors", "net.v2"),
        ("net.PT2", "net"),
        ("openood:results/cifar10_base/s1/best.ckpt", "cifar10_base_s1"),
        ("openood:mine.ckpt", "mine"),
        ("resnet50-v1", "resnet50-v1"),
    ],
)
def test_names_of_networks(spec: str, name: str) -> None:
    assert _name(spec) == name
