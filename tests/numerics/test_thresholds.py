"""Conformal p-values, the false-alarm band and error-rate control: the arithmetic and the promise.

The promises are statements about random calibration sets. They are tested as such, with fixed
seeds: a rate is compared with what a binomial of that many trials allows.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tulip_ood.errors import InputError, ThresholdError
from tulip_ood.numerics import thresholds
from tulip_ood.numerics.thresholds import (
    conformal_p_values,
    error_rate_threshold,
    false_alarm_threshold,
)

inf = math.inf
PROPERTY = settings(deadline=None, max_examples=150)
VALUES = st.sampled_from([-inf, -1.0, 0.0, 0.5, 1.0, inf]) | st.floats(-10, 10, width=32)
CALIBRATION = st.lists(VALUES.filter(math.isfinite), min_size=1, max_size=40)
RATES = st.floats(0.01, 0.99) | st.sampled_from([1 / k for k in range(2, 60)])


def plain_p_value(calibration: list[float], score: float) -> float:
    return (1 + sum(c >= score for c in calibration)) / (len(calibration) + 1)


def rising(values: list[float]) -> Tensor:
    return torch.tensor(sorted(values), dtype=torch.float64)


# ---------------------------------------------------------------------------------- p-values


@PROPERTY
@given(CALIBRATION, st.lists(VALUES, min_size=1, max_size=8))
def test_p_value_counts_calibration_scores_at_or_above(
    calibration: list[float], scores: list[float]
) -> None:
    p = conformal_p_values(rising(calibration), torch.tensor(scores))
    assert p.tolist() == [plain_p_value(calibration, s) for s in scores]


def test_p_values_keep_the_shape_of_the_scores() -> None:
    scores = torch.tensor([[0.0, 1.5, 9.0], [1.0, 2.0, 3.0]]).T  # not contiguous
    p = conformal_p_values(torch.tensor([1.0, 2.0, 3.0]), scores)
    assert p.tolist() == [[1.0, 1.0], [0.75, 0.75], [0.25, 0.5]]


@PROPERTY
@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=6))
def test_weighted_p_value_counts_each_input_once(inputs: list[list[int]]) -> None:
    """Dense outputs: an input of k positions gives each of them the weight 1/k."""
    flat = sorted((float(s), 1 / len(positions)) for positions in inputs for s in positions)
    scores = torch.tensor([s for s, _ in flat], dtype=torch.float64)
    weights = torch.tensor([w for _, w in flat], dtype=torch.float64)
    for score in range(-4, 5):
        mass = sum(
            (Fraction(sum(s >= score for s in positions), len(positions)) for positions in inputs),
            Fraction(0),
        )
        p = conformal_p_values(scores, torch.tensor([float(score)]), weights=weights)
        assert float(p) == pytest.approx(float((1 + mass) / (len(inputs) + 1)), abs=1e-14)
    one_each = torch.ones(len(inputs), dtype=torch.float64)
    firsts = rising([float(positions[0]) for positions in inputs])
    assert torch.equal(
        conformal_p_values(firsts, scores, weights=one_each), conformal_p_values(firsts, scores)
    )


# ------------------------------------------------------- threshold and p-value: one decision


@PROPERTY
@given(CALIBRATION, st.lists(VALUES, min_size=1, max_size=10), RATES)
def test_threshold_and_p_value_decide_alike(
    calibration: list[float], scores: list[float], rate: float
) -> None:
    """score ≤ threshold ⇔ p > rate: on the calibration scores, beside them and far from them."""
    if 1 / (len(calibration) + 1) > rate:
        with pytest.raises(ThresholdError):
            false_alarm_threshold(rising(calibration), rate)
        return
    threshold = false_alarm_threshold(rising(calibration), rate)
    beside = [math.nextafter(c, side) for c in calibration for side in (-inf, inf)]
    tried = torch.tensor([*scores, *calibration, *beside, inf], dtype=torch.float64)
    accepted = tried <= threshold
    assert torch.equal(accepted, conformal_p_values(rising(calibration), tried) > rate)


@PROPERTY
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=7), min_size=1, max_size=30), RATES
)
def test_threshold_and_p_value_decide_alike_with_weights(
    inputs: list[list[int]], rate: float
) -> None:
    flat = sorted((float(s), 1 / len(positions)) for positions in inputs for s in positions)
    scores = torch.tensor([s for s, _ in flat], dtype=torch.float64)
    weights = torch.tensor([w for _, w in flat], dtype=torch.float64)
    if 1 / (len(inputs) + 1) > rate:
        with pytest.raises(ThresholdError):
            false_alarm_threshold(scores, rate, weights=weights)
        return
    threshold = false_alarm_threshold(scores, rate, weights=weights)
    tried = torch.arange(-4, 4.25, 0.25, dtype=torch.float64)
    p = conformal_p_values(scores, tried, weights=weights)
    assert torch.equal(tried <= threshold, p > rate)


@pytest.mark.parametrize("n", [1, 2, 19, 48, 99, 999])
def test_the_fewest_inputs_that_a_rate_needs(n: int) -> None:
    """1/(n+1) is the lowest rate of n inputs (at n = 48, (1/49)·49 is not 1 in floating point)."""
    calibration = torch.arange(float(n))
    assert false_alarm_threshold(calibration, 1 / (n + 1)) == n - 1
    if n > 1:
        message = rf"needs at least {n} held-out calibration inputs, but there are {n - 1}:"
        with pytest.raises(ThresholdError, match=message):
            false_alarm_threshold(calibration[:-1], 1 / (n + 1))


def test_weights_that_do_not_add_up_exactly_count_as_whole_inputs() -> None:
    """99 inputs of 3 positions, 1/3 each: the sum misses 99 in the last digits, the rate is 1 %."""
    scores = torch.arange(297.0, dtype=torch.float64)
    weights = torch.full((297,), 1 / 3, dtype=torch.float64)
    assert false_alarm_threshold(scores, 0.01, weights=weights) == 296.0


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_false_alarm_rate_outside_0_to_1_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="false_alarm must lie between 0 and 1"):
        false_alarm_threshold(torch.arange(9.0), rate)


# ------------------------------------------------------------------------- conformal validity

SPLITS = 300


def false_alarms(scores: Tensor, n: int, rate: float, seed: int) -> np.ndarray:
    """Held-out inputs refused, in 300 random splits of a fixed set into n and the rest."""
    generator = torch.Generator().manual_seed(seed)
    counts = []
    for _ in range(SPLITS):
        order = torch.randperm(len(scores), generator=generator)
        threshold = false_alarm_threshold(scores[order[:n]].sort().values, rate)
        counts.append(int((scores[order[n:]] > threshold).sum()))
    return np.array(counts)


@pytest.mark.parametrize(
    ("n", "rate"), [(100, 0.05), (100, 0.2), (250, 0.05), (333, 0.1), (99, 0.01)]
)
def test_false_alarms_follow_the_beta_binomial_law(n: int, rate: float) -> None:
    """Given n and m inputs and no ties, the count is Beta-binomial(m, l, n+1−l), exactly.

    The share of splits inside the central 90 % band, the mean, and the whole distribution (a χ²
    test over ten cells) are what 300 draws from that law allow.
    """
    m = 400
    scores = torch.randn(n + m, generator=torch.Generator().manual_seed(n)).exp()
    rank = math.floor(rate * (n + 1) + 1e-9)
    law = stats.betabinom(m, rank, n + 1 - rank)
    counts = false_alarms(scores, n, rate, seed=n)

    low, high = law.ppf(0.05), law.ppf(0.95)
    inside = int(((counts >= low) & (counts <= high)).sum())
    expected = law.cdf(high) - law.cdf(low - 1)
    assert expected >= 0.9
    assert stats.binomtest(inside, SPLITS, expected).pvalue > 0.01

    error = law.std() / math.sqrt(SPLITS)
    assert counts.mean() == pytest.approx(law.mean(), abs=3 * error)
    assert counts.mean() <= rate * m + 3 * error

    edges = np.unique(law.ppf(np.linspace(0, 1, 11)[1:-1]))
    cells = np.searchsorted(edges, counts, side="left")
    chances = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    seen = np.bincount(cells, minlength=len(chances))
    assert stats.chisquare(seen, SPLITS * chances).pvalue > 0.01


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_ties_only_lower_the_false_alarms(rate: float) -> None:
    """Scores of few values: at most the promised rate, and never above the band of the law."""
    n, m = 100, 400
    scores = torch.randn(n + m, generator=torch.Generator().manual_seed(1)).mul(3).round()
    rank = math.floor(rate * (n + 1) + 1e-9)
    law = stats.betabinom(m, rank, n + 1 - rank)
    counts = false_alarms(scores, n, rate, seed=2)
    above = int((counts > law.ppf(0.95)).sum())
    assert above <= stats.binom.ppf(0.999, SPLITS, 0.05)
    assert counts.mean() <= rate * m + 3 * law.std() / math.sqrt(SPLITS)


def test_p_values_of_new_inputs_are_uniform() -> None:
    """P(p ≤ α) ≤ α for every α at once, with equality at the multiples of 1/(n+1)."""
    n, trials = 19, 4000
    drawn = torch.randn(trials, n + 1, generator=torch.Generator().manual_seed(5))
    p = torch.cat(
        [conformal_p_values(row[:n].sort().values, row[n:]) for row in drawn.unbind()]
    ).numpy()
    seen = np.bincount(np.round(p * (n + 1)).astype(int), minlength=n + 2)[1:]
    assert stats.chisquare(seen).pvalue > 0.01


def test_weights_make_dense_p_values_valid_where_pooling_is_not() -> None:
    """A random position of a new input: P(p ≤ α) ≤ α, although inputs differ in size and level.

    Large inputs have low scores here, so that counting positions instead of inputs would refuse
    far more than α: the weights are what makes it hold.
    """
    generator = torch.Generator().manual_seed(0)
    n, trials, alpha = 39, 600, 0.1

    def draw() -> Tensor:
        large = bool(torch.rand(1, generator=generator) < 0.5)
        level = torch.randn(1, generator=generator) - (2.0 if large else 0.0)
        return level + 0.5 * torch.randn(40 if large else 2, generator=generator)

    weighted, pooled = [], []
    for _ in range(trials):
        inputs = [draw() for _ in range(n)]
        scores, order = torch.cat(inputs).to(torch.float64).sort()
        weights = torch.cat([torch.full((len(i),), 1 / len(i)) for i in inputs])[order]
        new = draw()
        p = conformal_p_values(scores, new, weights=weights.to(torch.float64))
        weighted.append(float((p <= alpha).double().mean()))
        pooled.append(float((conformal_p_values(scores, new) <= alpha).double().mean()))
    error = float(np.std(weighted)) / math.sqrt(trials)
    assert np.mean(weighted) <= alpha + 2 * error
    assert np.mean(weighted) >= alpha / 2  # not by refusing nothing
    assert np.mean(pooled) > alpha + 4 * error


# ------------------------------------------------------- the band and its ingredients: scipy


@pytest.mark.parametrize("n", [1, 2, 10, 333, 5000])
@pytest.mark.parametrize("p", [0.0, 1e-6, 0.05, 0.5, 0.97, 1.0])
def test_binomial_tail_equals_scipy(n: int, p: float) -> None:
    for k in sorted({0, 1, n // 20, n // 2, n - 1, n, n + 1}):
        assert thresholds.binomial_tail(k, n, p) == pytest.approx(
            stats.binom.sf(k - 1, n, p), rel=1e-9, abs=1e-300
        )


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 99), (5, 96), (50, 951), (300, 20)])
@pytest.mark.parametrize("q", [1e-4, 0.05, 0.5, 0.95, 0.9999])
def test_beta_quantile_equals_scipy(q: float, a: int, b: int) -> None:
    assert thresholds.beta_quantile(q, a, b) == pytest.approx(stats.beta.ppf(q, a, b), rel=1e-9)


@pytest.mark.parametrize(("errors", "n"), [(0, 1), (0, 59), (3, 100), (17, 400), (9, 10)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson_equals_scipy(errors: int, n: int, confidence: float) -> None:
    exact = stats.binomtest(errors, n, alternative="less").proportion_ci(confidence, "exact")
    assert thresholds.clopper_pearson_upper(errors, n, confidence) == pytest.approx(
        exact.high, rel=1e-9
    )


def test_clopper_pearson_promises_nothing_without_evidence() -> None:
    assert thresholds.clopper_pearson_upper(0, 0, 0.95) == 1.0
    assert thresholds.clopper_pearson_upper(5, 5, 0.95) == 1.0


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("n", "rate"), [(19, 0.05), (99, 0.05), (100, 0.05), (1000, 0.01), (333, 0.2), (10, 0.95)]
)
def test_band_is_the_central_interval_of_its_beta_law(n: int, rate: float, level: float) -> None:
    rank = math.floor(Fraction(str(rate)) * (n + 1))
    law = stats.beta(rank, n + 1 - rank)
    tail = (1 - level) / 2
    low, high = thresholds.false_alarm_band(n, rate, level)
    assert (low, high) == pytest.approx((law.ppf(tail), law.ppf(1 - tail)), rel=1e-9)


def test_band_of_too_few_inputs_is_empty() -> None:
    assert thresholds.false_alarm_band(10, 0.05) == (0.0, 0.0)


# ------------------------------------------------------------------------ error-rate control


def chance_of_error(score: Tensor) -> Tensor:
    """A network that is the less right the higher the score: 0.6·s⁴ for s uniform on (0, 1)."""
    return 0.6 * score**4


def true_error_below(threshold: float) -> float:
    """The mean of 0.6·s⁴ below a threshold; .05 at s = .80."""
    return 0.12 * min(threshold, 1.0) ** 4


@pytest.mark.parametrize("steps", [None, 20], ids=["continuous", "tied"])
def test_the_error_rate_among_accepted_holds_with_the_asked_confidence(steps: int | None) -> None:
    """Calibration sets from a known model: the true error exceeds max_error in ≤ 1 − confidence."""
    generator = torch.Generator().manual_seed(3)
    trials, n, max_error, confidence = 100, 600, 0.05, 0.8
    broken, coverages = 0, []
    for _ in range(trials):
        scores = torch.rand(n, generator=generator, dtype=torch.float64)
        wrong = torch.rand(n, generator=generator) < chance_of_error(scores)
        if steps is not None:
            scores = (scores * steps).ceil() / steps
        found = error_rate_threshold(scores, wrong, max_error=max_error, confidence=confidence)
        # Of rounded-up scores, the whole step below the threshold is what is accepted.
        up_to = found.threshold if steps is None else math.floor(found.threshold * steps) / steps
        broken += true_error_below(up_to) > max_error
        coverages.append(found.coverage)
    assert broken <= stats.binom.ppf(0.99, trials, 1 - confidence)
    # The promise is not bought by refusing nearly everything: .80 is the best there is.
    assert 0.6 < float(np.mean(coverages)) < 0.8


def test_what_is_reported_is_what_is_accepted() -> None:
    generator = torch.Generator().manual_seed(4)
    scores = torch.rand(500, generator=generator).mul(40).round()  # with ties
    wrong = torch.rand(500, generator=generator) < scores / 200
    found = error_rate_threshold(scores, wrong, max_error=0.1, confidence=0.9)
    assert 0.2 < found.coverage < 1
    accepted = scores.to(torch.float64) <= found.threshold
    assert found.coverage == float(accepted.double().mean())
    assert found.error_rate == float(wrong[accepted].double().mean())
    k, errors = int(accepted.sum()), int(wrong[accepted].sum())
    each = 1 - 0.1 / 12  # a union bound over the twelve coverages that are tried
    assert found.upper_bound == pytest.approx(stats.beta.ppf(each, errors + 1, k - errors))
    assert found.upper_bound <= 0.1


def test_everything_is_accepted_where_that_is_safe() -> None:
    scores = torch.linspace(0, 1, 400)
    found = error_rate_threshold(scores, torch.zeros(400, dtype=torch.bool), max_error=0.05)
    assert found.coverage == 1.0
    assert found.threshold > 1e300


@pytest.mark.parametrize("seed", range(8))
def test_the_rate_that_the_message_offers_can_be_had(seed: int) -> None:
    """No coverage reaches the rate: the message names the lowest that can, and that one works."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(120 + 30 * seed, generator=generator)
    wrong = torch.rand(len(scores), generator=generator) < 0.2
    with pytest.raises(ThresholdError, match="cannot be promised") as refused:
        error_rate_threshold(scores, wrong, max_error=0.01)
    offered = float(str(refused.value).split("the lowest that can is ")[1].split(",")[0])
    found = error_rate_threshold(scores, wrong, max_error=offered)
    assert found.upper_bound <= offered <= found.upper_bound * 1.01 + 1e-9


@pytest.mark.parametrize("n", [1, 50])
def test_no_rate_is_offered_where_none_can_be_had(n: int) -> None:
    """A rate of 1, which would be refused in its turn, is no offer."""
    with pytest.raises(ThresholdError, match=r"nor can any useful one: .* wrong on 100 %"):
        error_rate_threshold(torch.rand(n), torch.ones(n, dtype=torch.bool), max_error=0.02)


@pytest.mark.parametrize(
    ("scores", "wrong", "message"),
    [
        ([], [], "needs calibration scores"),
        ([inf, inf], [True, False], "needs calibration scores"),
        ([0.1, math.nan], [True, False], "none of them NaN"),
        ([0.1, 0.2], [True], "equally long, got 2 and 1"),
    ],
)
def test_error_rate_control_refuses_bad_scores(
    scores: list[float], wrong: list[bool], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        error_rate_threshold(torch.tensor(scores), torch.tensor(wrong), max_error=0.1)


@pytest.mark.parametrize(("max_error", "confidence"), [(0.0, 0.9), (1.0, 0.9), (0.1, 1.0)])
def test_error_rate_control_refuses_rates_outside_0_to_1(
    max_error: float, confidence: float
) -> None:
    scores, wrong = torch.rand(9), torch.zeros(9, dtype=torch.bool)
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        error_rate_threshold(scores, wrong, max_error=max_error, confidence=confidence)
