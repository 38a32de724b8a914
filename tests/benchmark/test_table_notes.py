"""What stands below a table: networks, tuning, data that was fitted on, findings."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tulip_ood.benchmark.paper_table import paper_table_model
from tulip_ood.benchmark.pooled import pool
from tulip_ood.benchmark.rendering_html import as_html
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet, Run
from tulip_ood.benchmark.set_tables import per_set_table_model, shift_table_model

from .synthetic import benchmark


def changed(made: Benchmark, change: Callable[[Run], Run]) -> Benchmark:
    return replace(made, runs=tuple(map(change, made.runs)))


def notes(made: Benchmark, track: str = "val") -> str:
    pooled = pool(made, track, resamples=10)  # whose intervals are no part of the notes
    return "\n".join(paper_table_model(made, track, pooled=pooled).notes)


def of_kind(made: Benchmark, **kinds: str) -> Benchmark:
    return changed(made, lambda run: replace(run, architecture=kinds[run.network]))


# ------------------------------------------------------------------------------- networks


def test_every_table_names_its_networks() -> None:
    made = of_kind(benchmark(shifted=True), s0="ResNet18Small", s1="ResNet18Small",
                   s2="ResNet18Small")  # fmt: skip
    for table in (
        paper_table_model(made, "val"),
        per_set_table_model(made, "val"),
        shift_table_model(made, "val"),
    ):
        assert "Networks (ResNet18Small): s0, s1 and s2." in table.notes
    assert "other networks" not in notes(made)
    assert "Network: s0." in notes(benchmark(networks=["s0"]))


def test_architectures_that_differ_are_said() -> None:
    made = of_kind(benchmark(networks=["a", "b"]), a="ResNet18Small", b="ViT")
    text = notes(made)
    assert "different architectures are averaged here: a (ResNet18Small) and b (ViT)" in text
    assert "OpenOOD’s ResNets, here it is ViT: other networks" in text


@pytest.mark.parametrize(
    ("id_set", "network", "kind", "theirs"),
    [
        ("cifar10", "net", "ResNet18Small", True),
        ("cifar10", "net", "ResNet50", False),
        ("imagenet", "resnet50_IMAGENET1K_V1-0123456789", "ResNet", True),
        ("imagenet", "resnet18_IMAGENET1K_V1-0123456789", "ResNet", False),
        ("imagenet", "net", "", True),  # nothing is known, nothing is said
    ],
)
def test_published_numbers_are_of_openoods_networks(
    id_set: str, network: str, kind: str, theirs: bool
) -> None:
    made = of_kind(benchmark(networks=[network]), **{network: kind})
    text = notes(replace(changed(made, lambda run: replace(run, id_set=id_set)), id_set=id_set))
    assert ("other networks" not in text) == theirs


def test_one_name_for_two_networks() -> None:
    made = benchmark(networks=["net-0123456789", "net-abcdefabcd"])
    assert "have the same name" not in notes(made)  # their training seeds differ
    same = changed(made, lambda run: replace(run, training_seed=0))
    assert "net-0123456789 and net-abcdefabcd have the same name" in notes(same)


def test_ensembles_have_no_spread_no_interval_and_no_bold() -> None:
    table = paper_table_model(benchmark(strength={"ent": 1.0, "msp": 0.9, "ensemble": 5.0}), "val")
    rows = {row.name: row for row in table.rows}
    for column, cell in zip(table.columns, rows["ensemble"].cells, strict=True):
        assert "±" not in cell.text
        assert not cell.bold
        if "− ent" in column.title:
            assert re.fullmatch(r"\+\d+\.\d\d", cell.text)
    assert any(note.startswith("ensemble: nearly the same") for note in table.notes)
    assert any("± " in cell.text for cell in rows["ent"].cells)
    only = paper_table_model(benchmark(strength={"ent": 1.0, "ensemble": 5.0}), "val")
    assert not any("Bold" in note for note in only.notes)
    one = benchmark(networks=["s0"], strength={"ent": 1.0, "ensemble": 5.0})
    assert "ensemble: of several networks, not of this one alone." in notes(one)


# --------------------------------------------------------------------- tuning and fitting


def test_what_parameters_were_chosen_on() -> None:
    on = {"ent": "ood", "knn": "ood", "vim": "none", "tulip": "none", "knn&tulip": "none"}
    strength = dict.fromkeys([*on, "tulip[tune=ood]"], 1.0)
    made = changed(
        benchmark(strength=strength), lambda run: replace(run, tune=on.get(run.method, "ood"))
    )
    assert (
        "Parameters chosen: of TULiP’s rivals on OOD validation images, but for vim (on no OOD "
        "images); of TULiP on no OOD images, but for tulip[tune=ood] (on OOD validation images)."
    ) in notes(made)
    alike = changed(made, lambda run: replace(run, tune="pseudo"))
    assert "of TULiP on images made from the validation images." in notes(alike)
    nothing = changed(made, lambda run: replace(run, parameters={}))
    assert "Parameters chosen" not in notes(nothing)


def test_networks_that_were_tuned_differently() -> None:
    made = changed(
        benchmark(strength={"ent": 1.0}),
        lambda run: replace(run, tune="ood" if run.network == "s0" else "none"),
    )
    assert "of TULiP’s rivals on OOD validation images or no OOD images." in notes(made)


def test_stand_ins_that_were_fitted_on_are_marked() -> None:
    fitted_on = {
        "val": BenchmarkSet("cifar10", "val", 500, 1_000, "half of them"),
        "train": BenchmarkSet("cifar10", "train", 90, 50_000),
        "ood_val": BenchmarkSet("tin", "ood_val", 20, 1_000, "noise"),
    }
    made = replace(benchmark(tracks=["val", "train"]), fitted_on=fitted_on)
    val = paper_table_model(made, "val")
    assert "fitted on N = 1,000 validation images †." in val.caption
    assert "cifar10 (validation): half of them (500 of 1,000 images)." in "\n".join(val.notes)
    train = paper_table_model(changed(made, lambda run: replace(run, tune="ood")), "train")
    assert "N = 50,000 training images † and N = 1,000 validation images †." in train.caption
    text = "\n".join(train.notes)
    assert "cifar10 (training): 90 of 50,000 images; tin (OOD validation): noise" in text
    whole = {"val": BenchmarkSet("cifar10", "val", 1_000, 1_000)}
    assert "Not fitted on" not in notes(replace(made, fitted_on=whole))


# ------------------------------------------------------------------------------- findings


def test_findings_are_said_once() -> None:
    passed_over = "{} of 5 combinations could not be scored and were passed over."

    def found(run: Run) -> Run:
        if run.method not in ("knn", "vim"):
            return run
        return replace(run, findings=(passed_over.format(4 if run.network == "s0" else 3),))

    text = notes(changed(benchmark(strength={"ent": 1.0, "knn": 1.0, "vim": 1.0}), found))
    assert "knn and vim: 4 of 5 combinations could not be scored and were passed over." in text
    assert text.count("passed over") == 1


def test_long_findings_are_shortened() -> None:
    long = f"the beginning says it, {'and more ' * 30}the end. [too-accurate]"
    text = notes(changed(benchmark(), lambda run: replace(run, findings=(long, "odd [odd-one]"))))
    assert "all methods: the beginning says it, and more" in text
    assert "and …; all methods: odd." in text
    assert "the end" not in text


def test_many_findings_are_counted() -> None:
    many = tuple(f"odd {letter}" for letter in "abcdef")
    text = notes(changed(benchmark(), lambda run: replace(run, findings=many)))
    assert "(in full: tulip bench --json): all methods: odd a; all methods: odd b;" in text
    assert "odd d; and 2 more." in text
    assert "odd e" not in text


# ---------------------------------------------------------------------------------- pages


def test_several_tables_are_one_page() -> None:
    made = benchmark(tracks=["val", "train"])
    tables = [per_set_table_model(made, track) for track in ("val", "train")]
    page = as_html(*tables)
    for tag in ("<!doctype html>", "<html", "</html>", "<h1>", "<style>", "<main>"):
        assert page.count(tag) == 1
    assert page.count("<table>") == page.count("</table>") == 2
    assert page.index("Track val") < page.index("Track train")
