"""The long table: every number once, in one order, in a file of equal bytes."""

import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.benchmark.tidy import COLUMNS, correct_refused, tidy
from tulip_ood.benchmark.tidy_file import environment_file, read_parquet, write_parquet
from tulip_ood.errors import DataError, FileFormatError, InputError
from tulip_ood.numerics import metrics

from .synthetic import benchmark


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, found
    return found[0]


FIRST = {"network": "s0", "method": "tulip", "track": "val"}


def test_every_row_has_a_place_of_its_own() -> None:
    made = benchmark(shifted=True, tracks=["val", "train"], limit=60)
    rows = tidy(made)
    places = Counter(
        tuple(row[k] for k in ("network", "method", "track", "ood_set", "group", "metric"))
        for row in rows
    )
    assert set(places.values()) == {1}
    # 4 sets × 6, 2 means × 6, 7 of the run, 3 of the shifted set, 6 × 5 in the full spectrum
    assert len(rows) == len(made.runs) * (24 + 12 + 7 + 3 + 30)
    assert all(tuple(row) == COLUMNS for row in rows)
    assert {row["limit"] for row in rows} == {60}
    assert {row["parameters"] for row in rows if row["method"] == "ent"} == {
        '{"a": [0.5, "ent"], "z": 1}'
    }


def test_the_numbers_are_those_of_the_scores() -> None:
    made = benchmark(shifted=True)
    rows = tidy(made)
    run = next(r for r in made.runs if (r.method, r.network) == ("tulip", "s0"))
    inside, texture = run.result.id_scores, run.result.sets["texture"].scores
    for metric in (
        "auroc",
        "id_flagged_at_95_ood",
        "ood_missed_at_95_id",
        "aupr_in",
        "aupr_out",
    ):
        row = one(rows, **FIRST, ood_set="texture", group="far", metric=metric)
        assert row["value"] == getattr(metrics, metric)(inside, texture)
        assert (row["n_id"], row["n_ood"]) == (80, 40)
        assert row["stand_in"] == "ten of 47 DTD classes, 32 px"
        both = [
            one(rows, **FIRST, ood_set=name, group="far", metric=metric)["value"]
            for name in ("mnist", "texture")
        ]
        mean = one(rows, **FIRST, ood_set=None, group="far", metric=metric)
        assert mean["value"] == pytest.approx(sum(both) / 2)
        assert mean["n_ood"] == 90
        assert mean["stand_in"].endswith("70,000; texture: ten of 47 DTD classes, 32 px")
        spectrum = torch.cat([inside, run.shifted["cifar10c"].scores])
        row = one(rows, **FIRST, ood_set="texture", group="fs-far", metric=metric)
        assert row["value"] == getattr(metrics, metric)(spectrum, texture)
        assert row["n_id"] == 110
    for metric in ("accuracy", "aurc", "augrc", "ece", "nll", "false_alarms", "accepted_error"):
        row = one(rows, **FIRST, ood_set="", group="id", metric=metric)
        assert row["value"] == getattr(run.result, metric)
    refused = one(rows, **FIRST, ood_set="texture", group="far", metric="refused")
    assert refused["value"] == float((texture > 1.6).double().mean())


def test_right_answers_under_shift_that_are_refused() -> None:
    made = benchmark(shifted=True)
    rows = tidy(made)
    run = next(r for r in made.runs if (r.method, r.network) == ("tulip", "s0"))
    part = run.shifted["cifar10c"]
    right = [s for s, w in zip(part.scores.tolist(), part.wrong.tolist(), strict=True) if w == 0]
    found = one(rows, **FIRST, group="shifted", metric="correct_refused")
    assert found["value"] == pytest.approx(sum(s > 1.6 for s in right) / len(right))
    accuracy = one(rows, **FIRST, group="shifted", metric="accuracy")
    assert accuracy["value"] == pytest.approx(len(right) / 30)


def test_an_input_without_a_score_is_refused_by_every_threshold() -> None:
    scores = torch.tensor([0.0, math.inf], dtype=torch.float64)
    assert correct_refused(scores, torch.zeros(2), math.inf) == 0.5
    rows = tidy(benchmark(change=lambda s: torch.where(s > 1.5, math.inf, s)))
    assert all(row["value"] is None or math.isfinite(row["value"]) for row in rows)


def test_a_number_that_does_not_exist_is_null() -> None:
    made = benchmark()
    nobody = vars(made.runs[0].result) | {"accepted_error": math.nan}
    run = vars(made.runs[0]) | {"result": type(made.runs[0].result)(**nobody)}
    rows = tidy(Benchmark("cifar10", (type(made.runs[0])(**run),), made.sets))
    assert one(rows, metric="accepted_error")["value"] is None


def test_equal_results_are_equal_bytes_in_whatever_order_they_came(tmp_path: Path) -> None:
    made = benchmark(shifted=True)
    backwards = Benchmark(made.id_set, made.runs[::-1], made.sets)
    assert tidy(made) == tidy(backwards)
    write_parquet(tidy(made), tmp_path / "a.parquet", {"device": "cpu"})
    write_parquet(tidy(backwards)[::-1], tmp_path / "b.parquet", {"device": "cuda"})
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert read_parquet(tmp_path / "a.parquet") == tidy(made)


def test_the_environment_stands_beside_the_table(tmp_path: Path) -> None:
    write_parquet(tidy(benchmark()), tmp_path / "r.parquet", {"torch": "2.13", "at": Path("/x")})
    assert environment_file(tmp_path / "r.parquet") == tmp_path / "r.environment.json"
    written = json.loads((tmp_path / "r.environment.json").read_text())
    assert written == {"torch": "2.13", "at": "/x"}
    assert b"2.13" not in (tmp_path / "r.parquet").read_bytes()


def test_both_files_appear_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(OSError, match="the disk is full"):
        write_parquet(tidy(benchmark()), tmp_path / "r.parquet", {})
    assert os.listdir(tmp_path) == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(InputError, match="a row of results has no 'network'"):
        write_parquet([{"id_set": "cifar10"}], tmp_path / "r.parquet", {})
    with pytest.raises(DataError, match="there is no file"):
        read_parquet(tmp_path / "r.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match="is not a whole parquet file"):
        read_parquet(tmp_path / "cut.parquet")
    pq.write_table(pa.table({"image": [1]}), tmp_path / "other.parquet")
    with pytest.raises(FileFormatError, match="its columns are image; expected id_set"):
        read_parquet(tmp_path / "other.parquet")


def test_what_parameters_were_chosen_on_is_a_column(tmp_path: Path) -> None:
    made = benchmark(strength={"ent": 1.0, "knn": 1.2})
    runs = tuple(replace(run, tune="ood" if run.method == "knn" else "none") for run in made.runs)
    rows = tidy(replace(made, runs=runs))
    assert {(row["method"], row["tune"]) for row in rows} == {("ent", "none"), ("knn", "ood")}
    assert COLUMNS[COLUMNS.index("parameters") + 1] == "tune"
    write_parquet(rows, tmp_path / "r.parquet", {})
    assert read_parquet(tmp_path / "r.parquet") == rows
