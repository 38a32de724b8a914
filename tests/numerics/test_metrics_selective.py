"""Selective answers: risk–coverage, AURC and AUGRC against every way to break ties."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.numerics.plain_metrics import ANSWERS, PROPERTY, SELECTIVE, plain_auroc, plain_risks

from tulip_ood.numerics import metrics


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
