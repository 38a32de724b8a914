"""`tulip reproduce` from passes and from finished runs; wrong use in one line; `all`."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.benchmark import bench_root

from tulip_ood.cli import figures_all
from tulip_ood.cli.figures_of_networks import OF_NETWORKS
from tulip_ood.figures import table_one

from .conftest import Tulip

SPEC = "tests.benchmark.bench_root:make_one"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "cifar10"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_root.make_root(tmp_path_factory.mktemp("sources") / "data")


def test_a_figure_of_a_network(tulip: Tulip, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    result = tulip(
        "reproduce", "msp-shift", SPEC, "--data", root, "--limit", 30, "--samples", 2, "--out", out
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "the mean confidence falls by" in result.stdout
    assert f"passes are kept in {out / 'passes'}" in result.stderr
    rows = pq.read_table(out / "msp-shift.parquet").to_pylist()
    assert len(rows) == 2 * 25  # bins
    assert list((out / "passes").glob("*.safetensors"))


def test_everything_that_the_sources_suffice_for(
    tulip: Tulip, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(figures_all, "_from_nothing", lambda *_: [])
    monkeypatch.setattr(figures_all, "say", lambda each: drawn.append(each.table.stem))
    result = tulip(
        "reproduce", "all", "--results", RESULTS, "--data", root, "--checkpoint", SPEC,
        "--limit", 30, "--samples", 2, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert set(drawn) == {
        *OF_NETWORKS, "timing", "table-1", "table-2", "balanced-lambda", "self-tuning",
        "what-the-bound-adds",
    }  # fmt: skip
    rows = pq.read_table(tmp_path / "what-the-bound-adds.parquet").to_pylist()
    assert {row["source"] for row in rows} == {"benchmark", "at hand"}


def test_a_figure_that_fails_stops_no_other(
    tulip: Tulip, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_all, "_from_nothing", lambda *_: [])
    monkeypatch.setattr(table_one, "draw", lambda *_: 1 / 0)
    result = tulip(
        "reproduce", "all", "--results", RESULTS, "--data", root,
        "--checkpoint", "no/such.safetensors", "--limit", 30, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "table-1: ZeroDivisionError: division by zero" in result.stderr
    assert "passes: " in result.stderr
    assert "not drawn: lambda-sweep" in result.stderr
    assert {p.stem for p in tmp_path.glob("*.png")} == {
        "table-2", "balanced-lambda", "self-tuning", "what-the-bound-adds"
    }  # fmt: skip


def test_all_says_what_it_lacks(
    tulip: Tulip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_all, "_from_nothing", lambda *_: ["closeness"])
    result = tulip("reproduce", "all", "--out", tmp_path)
    assert result.exit_code == 1
    assert "for want of --data and --checkpoint: lambda-sweep" in result.stderr
    assert "for want of --results" in result.stderr
    assert result.stderr.strip().splitlines()[-1].endswith("the reasons stand above")


def test_wrong_use_is_said_in_one_line(tulip: Tulip, root: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["ablation"], "give --data ROOT"),
        (["lambda-sweep", "--data", root], "--checkpoint FILE"),
        (["timing", SPEC], "give --data ROOT"),
        (["enhancement", SPEC, "--data", tmp_path / "nowhere"], "there is no folder"),
        (["msp-shift", "no/such.safetensors", "--data", root], "no/such.safetensors"),
        (["table-1"], "give --results DIR"),
        (["table-2", "--results", tmp_path], "holds no results.parquet"),
        (["self-tuning", "--tuning", tmp_path / "no.json"], "no result of make evidence-tuning"),
        (["what-the-bound-adds", "--data", root], "--checkpoint FILE"),
        (["all", "--results", tmp_path / "nowhere"], "holds no results.parquet"),
    ):
        result = tulip("reproduce", *arguments, "--out", tmp_path / "out")
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.stderr
        assert "Traceback" not in result.output
    assert list(tmp_path.glob("out/*.png")) == []
