"""Figures from finished benchmarks: the numbers in them are those of the long table."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import pytest

from tulip_ood.benchmark.published import EXTENDED
from tulip_ood.benchmark.tidy import COLUMNS
from tulip_ood.errors import DataError, FileFormatError, InputError
from tulip_ood.figures import balanced_lambda, bound_adds, self_tuning, table_one, table_two
from tulip_ood.figures.canvas import Drawn
from tulip_ood.figures.drawn_table import Entry, emphasise
from tulip_ood.figures.finished import Finished, paired, read_results, short_names

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TUNING = [BENCHMARKS / "tuning" / f"result-{name}.json" for name in ("cifar10", "cifar100")]


@pytest.fixture(scope="module")
def finished() -> Finished:
    names = ("cifar10", "cifar100", "cifar10-dropout")
    return read_results([BENCHMARKS / "results" / name for name in names])


def rows_of(drawn: Drawn) -> list[dict[str, Any]]:
    assert all(path.stat().st_size > 1000 for path in drawn.files)
    rows: list[dict[str, Any]] = pq.read_table(drawn.table).to_pylist()
    assert len(rows) == len(drawn.rows)
    return rows


def test_paired_differences_have_students_interval() -> None:
    gap = paired({"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 0.0, "b": 0.0, "c": 1.0, "d": 9.0})
    assert gap.values == (1.0, 2.0, 3.0)
    half = 4.303 / 3**0.5  # the deviation is 1
    assert (gap.low, gap.high) == pytest.approx((2 - half, 2 + half))
    assert not gap.clear
    assert paired({"a": 2.0, "b": 2.1}, {"a": 1.0, "b": 1.0}).low < 1.05
    with pytest.raises(InputError, match="common network"):
        paired({"a": 1.0}, {"b": 1.0})


def test_numbers_are_means_over_noise_seeds() -> None:
    row = dict.fromkeys(COLUMNS) | {
        "id_set": "cifar10", "network": "n", "method": "msp", "track": "val", "metric": "auroc",
        "group": "near", "parameters": '{"j": 2}',
    }  # fmt: skip
    found = Finished((row | {"value": 0.8}, row | {"value": 0.6, "noise_seed": 1}))
    assert found.numbers("auroc", "near") == {"msp": {"n": pytest.approx(0.7)}}
    assert found.numbers("auroc", "far") == {}
    assert found.parameters("msp") == {"n": {"j": 2}}
    assert short_names(["a-0123456789", "a-9876543210"])["a-0123456789"] == "a-0123456789"


def test_the_second_best_is_underlined_also_where_low_is_good() -> None:
    found = emphasise([Entry("a", 3.0), Entry("b", 1.0), Entry("c", 2.0)], higher=False)
    assert [(e.bold, e.underlined) for e in found] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip


def test_table_one(finished: Finished, tmp_path: Path) -> None:
    drawn = table_one.draw(finished, tmp_path)
    rows = {(row["id_set"], row["method"]): row for row in rows_of(drawn)}
    ours = finished.of("cifar10").numbers("auroc", "near")["tulip"]
    three = [100 * value for network, value in ours.items() if "dropout" not in network]
    assert len(three) == 3
    assert rows["cifar10", "tulip"]["near_auroc"] == pytest.approx(mean(three))
    assert rows["cifar10", "vim"]["track"] == "train"
    assert rows["cifar100", "vim"]["track"] == "val"
    assert rows["cifar10", "mcd"]["other_networks"]
    assert "no results of ImageNet-1K are at hand: tulip bench imagenet" in drawn.lines


def test_table_two(finished: Finished, tmp_path: Path) -> None:
    drawn = table_two.draw(finished, tmp_path)
    rows = rows_of(drawn)
    assert {row["source"] for row in rows} == {"ours", "published"}
    assert len({row["network"] for row in rows if row["source"] == "ours"}) == 7
    assert EXTENDED["vit-b-16"]["tulip"] == (72.96, 87.42)
    assert EXTENDED["vgg-16"]["ash-b"] is None
    imagenet = [row | {"id_set": "imagenet"} for row in finished.of("cifar100").rows]
    both = Finished((*finished.rows, *imagenet))
    large = table_two.draw(both, tmp_path)
    assert {row["id_set"] for row in large.rows} == {"imagenet"}
    assert large.lines == ()


def test_balanced_lambda(finished: Finished, tmp_path: Path) -> None:
    drawn = balanced_lambda.draw(finished, tmp_path)
    rows = rows_of(drawn)
    assert len(rows) == 6
    assert all(row["literal_j"] == 0 and row["literal_over_balanced"] > 4 for row in rows)
    for row in rows:
        assert row["near: tulip[recipe=paper]"] == pytest.approx(row["near: ent"])
    assert "on 6 of 6 networks" in drawn.lines[0]


def test_self_tuning(finished: Finished, tmp_path: Path) -> None:
    drawn = self_tuning.draw(finished, self_tuning.read_tuning(TUNING), tmp_path)
    rows = rows_of(drawn)
    costs = {(r["network"].partition("_")[0], r["recipe"]): r for r in rows if r["what"] == "cost"}
    assert costs["cifar10", "balanced-1"]["cost"] == 1
    assert costs["cifar10", "self-2"]["cost"] < 4 < costs["cifar10", "self-2, full search"]["cost"]
    assert costs["cifar100", "paper-1"]["far_gain"] == 0
    choices = [row for row in rows if row["what"] == "choice"]
    assert len(choices) == 7 + 6
    alone = self_tuning.draw(finished, [], tmp_path)
    assert {row["what"] for row in alone.rows} == {"choice"}
    (tmp_path / "x.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(FileFormatError, match="no result of make evidence-tuning"):
        self_tuning.read_tuning([tmp_path / "x.json"])


def test_what_the_bound_adds_over_networks(finished: Finished, tmp_path: Path) -> None:
    drawn = bound_adds.draw(finished, [], tmp_path)
    rows = {(r["id_set"], r["group"], r["method"]): r for r in rows_of(drawn)}
    near = finished.of("cifar10").numbers("auroc", "near")
    gap = paired(near["noise"], near[bound_adds.REFERENCE])
    assert rows["cifar10", "near", "noise"]["each"] == list(gap.values)
    assert rows["cifar10", "near", "noise"]["high"] == gap.high
    assert len(gap.values) == 3
    assert ("cifar10", "near", "noise-input") not in rows
    verdict = drawn.lines[-1]
    assert verdict.startswith("the drift pass adds nothing beyond ‖f(z)‖")


def test_results_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no results\.parquet"):
        read_results([tmp_path])
    with pytest.raises(InputError, match="no network with both"):
        balanced_lambda.draw(Finished(()), tmp_path)
