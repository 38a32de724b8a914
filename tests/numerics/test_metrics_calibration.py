"""Calibration error, likelihood and accuracy against their definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from tests.numerics.plain_metrics import PROPERTY, inf

from tulip_ood.numerics import metrics

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
