"""Tables and verdicts: what is marked as best is, and words follow the numbers."""

import dataclasses
import io
from typing import Any

import pytest
import torch
from rich.console import Console

import tulip_ood
from tulip_ood.benchmark.evaluate import evaluate
from tulip_ood.benchmark.results import Comparison, MethodResult
from tulip_ood.benchmark.tables import columns, plain_table, rich_table
from tulip_ood.benchmark.verdict import judge
from tulip_ood.errors import InputError


@pytest.fixture(scope="module")
def comparison(vectors: Any) -> Comparison:
    detectors = {
        name: tulip_ood.detectors.make(name, vectors.model).fit(vectors.loader())
        for name in ("msp", "ent", "ebo")
    }
    return evaluate(detectors, vectors.test, {"far away": vectors.ood}, {"far away": "far"})


def shifted(comparison: Comparison, name: str, by: float) -> Comparison:
    """The same, but one method's OOD scores are higher by so much."""
    from tulip_ood.numerics import metrics

    result = comparison.methods[name]
    one = result.sets["far away"]
    scores = one.scores + by
    changed = dataclasses.replace(one, scores=scores, auroc=metrics.auroc(result.id_scores, scores))
    better: MethodResult = dataclasses.replace(result, sets={"far away": changed})
    return dataclasses.replace(comparison, methods={**comparison.methods, name: better})


def test_best_is_best(comparison: Comparison) -> None:
    auroc, flagged, aurc = columns(comparison)
    assert (auroc.group, flagged.group, aurc.group) == ("far away", "far away", "")
    methods = comparison.methods
    highest = max(round(100 * r.sets["far away"].auroc, 1) for r in methods.values())
    for name, result in methods.items():
        assert (name in auroc.best) == (round(100 * result.sets["far away"].auroc, 1) == highest)
        assert aurc.cells[name] == f"{1000 * result.aurc:.2f}"
    lowest = min(round(1000 * r.aurc, 2) for r in methods.values())
    assert {n for n, r in methods.items() if round(1000 * r.aurc, 2) == lowest} == aurc.best


def test_tables_line_up(comparison: Comparison) -> None:
    lines = plain_table(comparison).splitlines()
    assert len(lines) == 2 + len(comparison.methods)
    ends = [[i for i, c in enumerate(line) if c == "."] for line in lines[2:]]
    assert all(places == ends[0] for places in ends)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rich_table(comparison))
    shown = console.export_text()
    for name, result in comparison.methods.items():
        assert name in shown
        assert f"{100 * result.sets['far away'].auroc:.1f}" in shown


def test_a_long_name_keeps_the_columns_apart(comparison: Comparison) -> None:
    name = "a set with a very long name indeed, longer than its columns"
    methods = {
        method: dataclasses.replace(result, sets={name: result.sets["far away"]})
        for method, result in comparison.methods.items()
    }
    long = Comparison(methods, {}, comparison.n_id, {name: 300})
    lines = plain_table(long).splitlines()
    assert name in lines[0]
    assert lines[0].rstrip().endswith(name)
    assert all(len(line) >= len(lines[0].rstrip()) for line in lines[2:])


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (0.0, "equally well"),
        (3.0, "recognises far away better than maximum probability does"),
        (-3.0, "recognises far away worse than maximum probability does"),
    ],
)
def test_headline_follows_the_numbers(comparison: Comparison, by: float, words: str) -> None:
    same = dataclasses.replace(
        comparison, methods={**comparison.methods, "ent": comparison.methods["msp"]}
    )
    verdict = judge(shifted(same, "ent", by), "ent", "msp")
    assert words in verdict.headline
    assert verdict.auroc["far away"].clear == (by != 0.0)


def test_verdict_says_what_was_refused(comparison: Comparison) -> None:
    verdict = judge(comparison, "ent", None)
    assert verdict.baseline is None
    refused = f"{100 * comparison.methods['ent'].sets['far away'].refused:.0f} % of far away"
    assert any(refused in sentence for sentence in verdict.sentences)


def test_errors_of_different_networks_are_not_paired(comparison: Comparison) -> None:
    entropy = comparison.methods["ent"]
    other = dataclasses.replace(entropy, wrong=1 - entropy.wrong)
    mixed = dataclasses.replace(comparison, methods={**comparison.methods, "ent": other})
    assert judge(mixed, "ent", "msp").aurc is None


def test_unknown_method(comparison: Comparison) -> None:
    with pytest.raises(InputError, match="'knn' is not in this comparison: msp, ent, ebo"):
        judge(comparison, "knn")


def test_no_ood_sets(vectors: Any) -> None:
    detector = tulip_ood.detectors.Entropy(vectors.model).fit(vectors.loader())
    found = evaluate({"ent": detector}, vectors.test, {})
    assert "AURC" in plain_table(found)
    assert judge(found, "ent", None).sentences
    assert torch.equal(found.methods["ent"].id_scores, detector.score(vectors.test[0]))
