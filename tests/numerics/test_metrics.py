"""Every metric against scikit-learn, and against its definition written out in plain loops."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics

inf = math.inf
PROPERTY = settings(deadline=None, max_examples=200)

# Heavy ties (few values, ±inf and both zeros among them), and arbitrary float32 numbers.
TIED = st.lists(st.sampled_from([-inf, -1.0, -0.0, 0.0, 0.25, 1.0, inf]), min_size=1, max_size=14)
FREE = st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=14)
SCORES = TIED | FREE
FINITE = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=1, max_size=14) | st.lists(
    st.floats(-1e6, 1e6, width=32), min_size=1, max_size=14
)
# A score and whether the answer was wrong, with many ties.
ANSWERS = st.lists(
    st.tuples(st.sampled_from([-inf, 0.0, 0.5, 1.0, inf]) | st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=14,
)

PAIRED: dict[str, Callable[..., float]] = {
    "auroc": metrics.auroc,
    "aupr_in": metrics.aupr_in,
    "aupr_out": metrics.aupr_out,
    "id_flagged_at_95_ood": metrics.id_flagged_at_95_ood,
    "ood_missed_at_95_id": metrics.ood_missed_at_95_id,
}
SELECTIVE: dict[str, Callable[..., float]] = {"aurc": metrics.aurc, "augrc": metrics.augrc}


# ------------------------------------------------------------------ definitions, written plainly


def plain_auroc(inside: Sequence[float], outside: Sequence[float]) -> float:
    won = Fraction(0)
    for o in outside:
        for i in inside:
            won += Fraction(1) if o > i else Fraction(1, 2) if o == i else 0
    return float(won / (len(inside) * len(outside)))


def plain_average_precision(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Σ over distinct thresholds, from the highest down, of (recall step) × precision."""
    total, recall_before = 0.0, 0.0
    for threshold in sorted(set(positive) | set(negative), reverse=True):
        caught = sum(p >= threshold for p in positive)
        flagged = caught + sum(n >= threshold for n in negative)
        recall = caught / len(positive)
        total += (recall - recall_before) * caught / flagged
        recall_before = recall
    return total


def plain_id_flagged(inside: Sequence[float], outside: Sequence[float], caught: float) -> float:
    for threshold in sorted(set(outside), reverse=True):
        if sum(o >= threshold for o in outside) / len(outside) >= caught:
            return sum(i >= threshold for i in inside) / len(inside)
    raise AssertionError("the lowest threshold catches everything")


def plain_ood_missed(inside: Sequence[float], outside: Sequence[float], kept: float) -> float:
    for threshold in sorted(set(inside)):
        if sum(i <= threshold for i in inside) / len(inside) >= kept:
            return sum(o <= threshold for o in outside) / len(outside)
    raise AssertionError("the highest threshold keeps everything")


def plain_risks(scores: Sequence[float], wrong: Sequence[bool]) -> list[Fraction]:
    """The risk of the k surest inputs, averaged over every way to break ties."""
    n = len(scores)
    orders = [
        order
        for order in permutations(range(n))
        if all(scores[a] <= scores[b] for a, b in pairwise(order))
    ]
    risks = [Fraction(0)] * n
    for order in orders:
        for k in range(1, n + 1):
            risks[k - 1] += Fraction(sum(wrong[i] for i in order[:k]), k * len(orders))
    return risks


# ------------------------------------------------------------------------------- ID against OOD


@PROPERTY
@given(SCORES, SCORES)
def test_auroc_counts_pairs_and_half_of_the_ties(inside: list[float], outside: list[float]) -> None:
    assert metrics.auroc(inside, outside) == plain_auroc(inside, outside)


@PROPERTY
@given(FINITE, FINITE)
def test_auroc_and_aupr_equal_scikit_learn(inside: list[float], outside: list[float]) -> None:
    is_ood = [0] * len(inside) + [1] * len(outside)
    values = np.array(inside + outside)
    assert metrics.auroc(inside, outside) == pytest.approx(
        sklearn_metrics.roc_auc_score(is_ood, values), abs=1e-12
    )
    assert metrics.aupr_out(inside, outside) == pytest.approx(
        sklearn_metrics.average_precision_score(is_ood, values), abs=1e-12
    )
    assert metrics.aupr_in(inside, outside) == pytest.approx(
        sklearn_metrics.average_precision_score(1 - np.array(is_ood), -values), abs=1e-12
    )


@PROPERTY
@given(SCORES, SCORES)
def test_aupr_is_the_sum_of_recall_steps(inside: list[float], outside: list[float]) -> None:
    assert metrics.aupr_out(inside, outside) == pytest.approx(
        plain_average_precision(outside, inside), abs=1e-12
    )
    assert metrics.aupr_in(inside, outside) == pytest.approx(
        plain_average_precision([-s for s in inside], [-s for s in outside]), abs=1e-12
    )


@PROPERTY
@given(SCORES, SCORES, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_both_fprs_are_their_definitions(
    inside: list[float], outside: list[float], share: float
) -> None:
    assert metrics.id_flagged_at_95_ood(inside, outside, caught=share) == plain_id_flagged(
        inside, outside, share
    )
    assert metrics.ood_missed_at_95_id(inside, outside, kept=share) == plain_ood_missed(
        inside, outside, share
    )


@pytest.mark.parametrize("n", [1, 19, 20, 21, 100, 1000])
def test_fprs_use_95_percent_by_default(n: int) -> None:
    """Also where 0.95·n is a whole number: one more or one fewer is another threshold."""
    outside = list(range(n))
    inside = [k + 0.5 for k in range(-5, n)]
    assert metrics.id_flagged_at_95_ood(inside, outside) == plain_id_flagged(inside, outside, 0.95)
    assert metrics.ood_missed_at_95_id(outside, inside) == plain_ood_missed(outside, inside, 0.95)


@PROPERTY
@given(FINITE, FINITE)
def test_id_flagged_is_fpr_at_95_tpr_of_scikit_learn(
    inside: list[float], outside: list[float]
) -> None:
    """OpenOOD's rule: the first point of the ROC curve at which 95 % of OOD is caught."""
    is_ood = [0] * len(inside) + [1] * len(outside)
    fpr, tpr, _ = sklearn_metrics.roc_curve(is_ood, inside + outside, drop_intermediate=False)
    assert metrics.id_flagged_at_95_ood(inside, outside) == pytest.approx(
        fpr[np.argmax(tpr >= 0.95)]
    )


@PROPERTY
@given(FINITE, FINITE)
def test_roc_curve_equals_scikit_learn(inside: list[float], outside: list[float]) -> None:
    is_ood = [0] * len(inside) + [1] * len(outside)
    fpr, tpr, _ = sklearn_metrics.roc_curve(is_ood, inside + outside, drop_intermediate=False)
    flagged, caught = metrics.roc_curve(inside, outside)
    np.testing.assert_allclose(flagged.numpy(), fpr, atol=1e-12)
    np.testing.assert_allclose(caught.numpy(), tpr, atol=1e-12)


@PROPERTY
@given(SCORES, SCORES)
def test_area_under_the_roc_curve_is_the_auroc(inside: list[float], outside: list[float]) -> None:
    flagged, caught = metrics.roc_curve(inside, outside)
    assert flagged[0] == caught[0] == 0
    assert flagged[-1] == caught[-1] == 1
    assert float(torch.trapezoid(caught, flagged)) == pytest.approx(
        metrics.auroc(inside, outside), abs=1e-12
    )


@PROPERTY
@given(SCORES, SCORES)
def test_changing_the_sides_mirrors_every_metric(inside: list[float], outside: list[float]) -> None:
    """What is ID for one is OOD for the other when all scores change their sign."""
    minus_in, minus_out = [-s for s in inside], [-s for s in outside]
    assert metrics.auroc(outside, inside) == pytest.approx(1 - metrics.auroc(inside, outside))
    assert metrics.auroc(minus_out, minus_in) == metrics.auroc(inside, outside)
    assert metrics.aupr_out(minus_out, minus_in) == metrics.aupr_in(inside, outside)
    assert metrics.ood_missed_at_95_id(minus_out, minus_in) == metrics.id_flagged_at_95_ood(
        inside, outside
    )


@pytest.mark.parametrize("name", PAIRED)
@settings(deadline=None, max_examples=60)
@given(SCORES, SCORES, st.randoms(use_true_random=False), st.lists(st.floats(0.1, 9), min_size=28))
def test_only_the_order_of_scores_counts(
    name: str, inside: list[float], outside: list[float], random: Any, gaps: list[float]
) -> None:
    """No metric changes under a strictly rising map of the scores, or a change of their places."""
    metric = PAIRED[name]
    expected = metric(inside, outside)
    distinct = sorted(set(inside) | set(outside))
    heights = dict(zip(distinct, np.cumsum(gaps[: len(distinct)]).tolist(), strict=True))
    mapped_in, mapped_out = [heights[s] for s in inside], [heights[s] for s in outside]
    random.shuffle(mapped_in)
    random.shuffle(mapped_out)
    assert metric(mapped_in, mapped_out) == expected


@pytest.mark.parametrize("name", PAIRED)
def test_blocks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of scores are looked up in blocks; the seams must not show."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(50, generator=generator).mul(4).round()
    outside = torch.randn(41, generator=generator).mul(4).round() + 2
    whole = PAIRED[name](inside, outside), metrics.roc_curve(inside, outside)
    monkeypatch.setattr(metrics, "_BLOCK", 7)
    pieces = PAIRED[name](inside, outside), metrics.roc_curve(inside, outside)
    assert pieces[0] == pytest.approx(whole[0], abs=1e-14)
    assert all(torch.equal(a, b) for a, b in zip(pieces[1], whole[1], strict=True))


# ---------------------------------------------------------------------------------- input types

AS = {
    "list": lambda v: v,
    "tuple": tuple,
    "float32": lambda v: torch.tensor(v, dtype=torch.float32),
    "float64": lambda v: torch.tensor(v, dtype=torch.float64),
    "requires_grad": lambda v: torch.tensor(v, requires_grad=True),
    "two-dimensional": lambda v: torch.tensor(v).reshape(2, -1),
    "strided": lambda v: torch.tensor([v, v]).T[:, 0],
    "numpy": np.array,
    "numpy float32": lambda v: np.array(v, dtype=np.float32),
    "numpy reversed": lambda v: np.array(v[::-1])[::-1],
    "numpy read-only": lambda v: np.frombuffer(np.array(v).tobytes()),
}


@pytest.mark.parametrize("kind", AS)
def test_numbers_may_come_in_any_container(kind: str) -> None:
    inside, outside = [0.25, 0.5, 0.5, 2.0], [0.5, 0.75, -1.0, 4.0]
    wrong = [0, 1, 0, 1]
    for metric in PAIRED.values():
        assert metric(AS[kind](inside), AS[kind](outside)) == metric(inside, outside)
    for metric in SELECTIVE.values():
        assert metric(AS[kind](inside), wrong) == metric(inside, wrong)
    assert metrics.ece(AS[kind]([0.25, 0.5]), [1, 0]) == metrics.ece([0.25, 0.5], [1, 0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_wrong_may_have_any_dtype(dtype: torch.dtype) -> None:
    wrong = torch.tensor([0, 1, 0, 1], dtype=dtype)
    assert metrics.aurc([0.1, 0.2, 0.3, 0.4], wrong) == pytest.approx(
        (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4
    )


def test_lists_keep_their_double_precision() -> None:
    """Python numbers are doubles: two that differ in the 13th digit are no tie."""
    assert metrics.auroc([0.3], [0.3 + 1e-13]) == 1.0
    assert metrics.auroc([0.3], torch.tensor([0.3], dtype=torch.float64)) == 0.5


def test_scores_of_two_precisions_are_compared_as_they_are() -> None:
    single = torch.tensor([0.1], dtype=torch.float32)  # a little above 0.1
    assert metrics.auroc(torch.tensor([0.1], dtype=torch.float64), single) == 1.0


# ---------------------------------------------------------------------------- selective answers


@settings(deadline=None, max_examples=60)
@given(ANSWERS.map(lambda answers: answers[:5]))
def test_risk_coverage_averages_over_the_ways_to_break_ties(
    answers: list[tuple[float, bool]],
) -> None:
    scores, wrong = [s for s, _ in answers], [w for _, w in answers]
    expected = plain_risks(scores, wrong)
    coverage, risk = metrics.risk_coverage(scores, wrong)
    assert coverage.tolist() == [k / len(scores) for k in range(1, len(scores) + 1)]
    np.testing.assert_allclose(risk.numpy(), [float(r) for r in expected], atol=1e-12)
    assert metrics.aurc(scores, wrong) == pytest.approx(float(sum(expected) / len(expected)))


@PROPERTY
@given(ANSWERS)
def test_augrc_is_its_formula_and_the_area_of_its_curve(answers: list[tuple[float, bool]]) -> None:
    """(1 − AUROC_f)·a·(1 − a) + ½(1 − a)², Traub et al. (2024), with AUROC_f of the failures."""
    scores, wrong = [s for s, _ in answers], [w for _, w in answers]
    right_scores = [s for s, w in answers if not w]
    wrong_scores = [s for s, w in answers if w]
    a = len(right_scores) / len(answers)
    auroc_f = plain_auroc(right_scores, wrong_scores) if 0 < a < 1 else 0.5
    formula = (1 - auroc_f) * a * (1 - a) + (1 - a) ** 2 / 2
    assert metrics.augrc(scores, wrong) == pytest.approx(formula, abs=1e-12)
    coverage, risk = metrics.risk_coverage(scores, wrong)
    curve = torch.cat([torch.zeros(1, dtype=torch.float64), risk * coverage])
    area = torch.trapezoid(curve, dx=1 / len(answers))
    assert metrics.augrc(scores, wrong) == pytest.approx(float(area), abs=1e-12)


@pytest.mark.parametrize("name", SELECTIVE)
@settings(deadline=None, max_examples=60)
@given(ANSWERS, st.randoms(use_true_random=False))
def test_selective_metrics_see_only_the_order(
    name: str, answers: list[tuple[float, bool]], random: Any
) -> None:
    expected = SELECTIVE[name](*zip(*answers, strict=True))
    distinct = sorted({s for s, _ in answers})
    moved = [(float(3 * distinct.index(s) - 7), w) for s, w in answers]
    random.shuffle(moved)
    assert SELECTIVE[name](*zip(*moved, strict=True)) == expected


def test_selective_metrics_at_the_ends() -> None:
    """Nothing wrong: 0. Everything wrong: risk 1 everywhere, and an area of one half."""
    scores = [0.1, 0.2, 0.3, 0.3]
    assert metrics.aurc(scores, [0] * 4) == metrics.augrc(scores, [0] * 4) == 0.0
    assert metrics.aurc(scores, [1] * 4) == 1.0
    assert metrics.augrc(scores, [1] * 4) == 0.5
    assert metrics.aurc([7.0], [1]) == 1.0


# ----------------------------------------------------------------------------------- calibration

CONFIDENT = st.lists(
    st.tuples(st.integers(0, 64).map(lambda k: k / 64), st.booleans()), min_size=1, max_size=30
)


@PROPERTY
@given(CONFIDENT, st.sampled_from([1, 2, 4, 8, 15, 16]))
def test_ece_and_reliability_are_their_definitions(
    answers: list[tuple[float, bool]], bins: int
) -> None:
    """Bins (b/B, (b+1)/B], the first one closed; empty bins do not appear."""
    expected, seen = Fraction(0), []
    for b in range(bins):
        low, high = Fraction(b, bins), Fraction(b + 1, bins)
        members = [
            (Fraction(c), Fraction(int(right)))
            for c, right in answers
            if low < Fraction(c) <= high or (b == 0 and c == 0)
        ]
        if members:
            said = sum(c for c, _ in members) / len(members)
            so = sum(right for _, right in members) / len(members)
            seen.append((float(said), float(so), len(members)))
            expected += abs(said - so) * len(members) / len(answers)
    confidence, correct = zip(*answers, strict=True)
    diagram = metrics.reliability(confidence, correct, bins=bins)
    np.testing.assert_allclose(torch.stack(list(diagram)).T.numpy(), seen, atol=1e-12)
    assert metrics.ece(confidence, correct, bins=bins) == pytest.approx(float(expected), abs=1e-12)


def test_ece_has_15_bins_by_default_and_allows_the_rounding_of_a_mean() -> None:
    confidence = [0.01, 0.05, 0.07, 0.13, 0.99, 1.0 + 2e-16]
    assert len(metrics.reliability(confidence, [0] * 6).inputs) == 3
    assert metrics.ece(confidence, [0] * 6) == metrics.ece(confidence, [0] * 6, bins=15)


@PROPERTY
@given(st.integers(1, 9), st.integers(2, 5), st.integers(0, 2**31))
def test_nll_and_accuracy_are_their_definitions(n: int, o: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(n, o, generator=generator, dtype=torch.float64).softmax(dim=-1)
    labels = torch.randint(o, (n,), generator=generator)
    plain = -sum(math.log(probs[i, labels[i]]) for i in range(n)) / n
    assert metrics.nll(probs, labels) == pytest.approx(plain)
    assert metrics.nll(probs, labels) == pytest.approx(
        sklearn_metrics.log_loss(labels, probs.numpy(), labels=range(o))
    )
    hits = sum(max(range(o), key=lambda c: float(probs[i, c])) == labels[i] for i in range(n))
    assert metrics.accuracy(probs, labels) == hits / n


def test_nll_of_an_impossible_answer_is_infinite() -> None:
    assert metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == inf


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", [*PAIRED, "roc_curve"])
def test_pairs_refuse_nan_and_nothing(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match="id_scores contains 1 NaN"):
        metric([0.1, math.nan], [0.2])
    with pytest.raises(InputError, match="ood_scores contains 2 NaN"):
        metric([0.1], torch.tensor([math.nan, 0.0, math.nan]))
    with pytest.raises(InputError, match="id_scores is empty"):
        metric([], [0.2])
    with pytest.raises(InputError, match="ood_scores is empty"):
        metric([0.1], np.array([]))


@pytest.mark.parametrize("name", ["aurc", "augrc", "risk_coverage", "ece", "reliability"])
def test_answers_refuse_nan_nothing_and_unequal_lengths(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match="contains 1 NaN"):
        metric([0.1, math.nan], [0, 1])
    with pytest.raises(InputError, match="contains 1 NaN"):
        metric([0.1, 0.2], [0, math.nan])
    with pytest.raises(InputError, match="is empty"):
        metric([], [])
    with pytest.raises(InputError, match="equally long, got 2 and 3"):
        metric([0.1, 0.2], [0, 1, 1])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, math.nan])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="a share must lie above 0"):
        metrics.id_flagged_at_95_ood([0.1], [0.2], caught=share)
    with pytest.raises(InputError, match="a share must lie above 0"):
        metrics.ood_missed_at_95_id([0.1], [0.2], kept=share)


def test_calibration_refuses_what_is_no_probability() -> None:
    with pytest.raises(InputError, match="must lie in 0…1, got 0.5 to 7"):
        metrics.ece([0.5, 7.0], [1, 0])
    with pytest.raises(InputError, match="bins must be at least 1, got 0"):
        metrics.reliability([0.5], [1], bins=0)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.accuracy])
def test_labels_must_fit_the_outputs(metric: Callable[..., float]) -> None:
    """[N, 1] would be compared with [N] as a table; that is refused, not averaged."""
    outputs = torch.full((3, 2), 0.5)
    with pytest.raises(InputError, match=r"need labels of shape \[3\], got \[3, 1\]"):
        metric(outputs, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(InputError, match="empty"):
        metric(outputs[:0], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InputError, match="contain 1 NaN"):
        metric(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]))
