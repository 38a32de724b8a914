"""Rows of a leaderboard."""

import csv
import io
from dataclasses import replace

from tulip_ood.benchmark.leaderboard import leaderboard_csv
from tulip_ood.benchmark.pooled import pool
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet

from .synthetic import benchmark


def rows_of(made: Benchmark) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(leaderboard_csv(made))))


def test_one_line_for_each_method_and_track() -> None:
    made = benchmark(tracks=["val", "train"])
    rows = rows_of(made)
    assert [(row["method"], row["training data"]) for row in rows] == [
        (name, answer) for answer in ("no", "yes") for name in ("ent", "msp", "tulip")
    ]
    assert {row["fitted on"] for row in rows} == {"1000", "50000"}
    pooled = pool(made, "val", resamples=2)
    mean, spread = (100 * f("tulip", "near", "auroc") for f in (pooled.mean, pooled.spread))
    assert rows[2]["near AUROC"] == f"{mean:.2f} ± {spread:.2f}"
    assert rows[2]["texture AUROC"]
    assert rows[2]["ID accuracy"]


def test_a_yardstick_on_both_tracks_has_one_line() -> None:
    made = benchmark(strength={"ent": 1.0})
    both = made.runs + tuple(replace(run, track="train") for run in made.runs)
    assert len(rows_of(Benchmark("cifar10", both, made.sets))) == 1


def test_stand_ins_are_named_in_every_line() -> None:
    for row in rows_of(benchmark()):
        assert (
            "texture: ten of 47 DTD classes, 32 px (40 of 5,640 images)"
            in row["sets that are not the published ones"]
        )


def test_one_network_has_no_spread() -> None:
    row = rows_of(benchmark(networks=["s0"]))[0]
    assert row["networks"] == "1"
    assert "±" not in row["near AUROC"]


def test_how_many_images_of_each_set_is_in_every_line() -> None:
    for row in rows_of(benchmark(limit=50)):
        assert row["images"] == (
            "cifar10: 80 of 80; cifar100: 60 of 60; tin: 45 of 45; "
            "mnist †: 50 of 70,000, seeded subset; texture †: 40 of 5,640"
        )


def test_networks_and_tuning_are_in_every_line() -> None:
    made = benchmark()
    runs = tuple(replace(r, tune="ood", parameters={} if r.method == "ent" else {"k": 1})
                 for r in made.runs)  # fmt: skip
    rows = rows_of(replace(made, runs=runs))
    assert {row["network ids"] for row in rows} == {"s0 s1 s2"}
    assert [row["tuned on"] for row in rows] == ["", "ood", "ood"]


def test_fitting_on_other_images_is_in_every_line() -> None:
    val = BenchmarkSet("cifar10", "id", 500, 1_000, "half of them")
    train = BenchmarkSet("cifar10", "id", 70, 50_000)
    made = replace(benchmark(tracks=["val", "train"]), fitted_on={"val": val, "train": train})
    for row in rows_of(made):
        notes = row["sets that are not the published ones"]
        assert "cifar10 (validation): half of them (500 of 1,000 images)" in notes
        learned = "cifar10 (training): 70 of 50,000 images" in notes
        assert learned == (row["training data"] == "yes")


def test_an_ensemble_has_no_spread() -> None:
    rows = {row["method"]: row for row in rows_of(benchmark(strength={"ent": 1, "ensemble": 2}))}
    assert "±" in rows["ent"]["near AUROC"]
    assert "±" not in rows["ensemble"]["near AUROC"]
