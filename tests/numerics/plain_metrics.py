"""Metrics as they are defined, in plain loops, and numbers to try them on."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise, permutations

from hypothesis import settings
from hypothesis import strategies as st

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
