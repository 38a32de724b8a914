"""ID against OOD: every metric against scikit-learn, and against its definition in plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from tests.numerics.plain_metrics import (
    FINITE,
    PAIRED,
    PROPERTY,
    SCORES,
    plain_auroc,
    plain_average_precision,
    plain_id_flagged,
    plain_ood_missed,
)

from tulip_ood.numerics import metrics


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
