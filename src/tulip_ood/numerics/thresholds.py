"""Thresholds that hold: conformal p-values, false-alarm control, error-rate control.

Nothing here knows how a score was made. What is promised follows from exchangeability alone:
calibration scores that fitting has not seen, and new inputs from the same source.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError, ThresholdError
from tulip_ood.numerics.places import places
from tulip_ood.wording import percent

__all__ = [
    "ErrorRateThreshold",
    "beta_quantile",
    "binomial_tail",
    "clopper_pearson_upper",
    "conformal_p_values",
    "error_rate_threshold",
    "false_alarm_band",
    "false_alarm_threshold",
]


def conformal_p_values(
    calibration: Tensor, scores: Tensor, *, weights: Tensor | None = None
) -> Tensor:
    """p(s) = (1 + #{calibration scores ≥ s}) / (n + 1): small means "unlike the ID data".

    For a new ID input, P(p ≤ α) ≤ α for every α. With `weights` (dense outputs) every
    calibration input counts 1 in all, spread over its positions; then the promise is for a
    random position of a new input (hierarchical conformal prediction, Lee, Barber & Willett).

    Args:
        calibration: Held-out ID scores, sorted in rising order, [n].
        scores: New scores, any shape.
        weights: The weight of each calibration score; they sum to the number of inputs.

    Example:
        >>> import torch
        >>> conformal_p_values(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.5, 9.0]))
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    calibration = calibration.to(torch.float64)
    below = places(calibration, scores.to(torch.float64))
    if weights is None:
        at_least = (calibration.numel() - below).to(torch.float64)
    else:
        # Added up from the top: exactly 0 above the highest score, whatever rounding does.
        mass = weights.to(torch.float64).flip(0).cumsum(0).flip(0)
        at_least = torch.cat([mass, mass.new_zeros(1)])[below]
    return (1.0 + at_least) / (_n_inputs(calibration, weights) + 1.0)


def _n_inputs(calibration: Tensor, weights: Tensor | None) -> int:
    return calibration.numel() if weights is None else round(float(weights.sum()))


def false_alarm_threshold(
    calibration: Tensor, false_alarm: float, *, weights: Tensor | None = None
) -> float:
    """The score up to which an input is accepted, so that at most `false_alarm` of ID is refused.

    "score ≤ threshold" is the same decision as "conformal p-value > false_alarm".

    Example:
        >>> import torch
        >>> false_alarm_threshold(torch.arange(1.0, 100.0), 0.05)
        95.0
    """
    if not 0.0 < false_alarm < 1.0:
        raise InputError(f"false_alarm must lie between 0 and 1, got {false_alarm}")
    calibration = calibration.to(torch.float64)
    n = _n_inputs(calibration, weights)
    # Same arithmetic as the p-values, so that the two decisions can never differ by rounding.
    if 1.0 / (n + 1.0) > false_alarm:
        needed = math.ceil(min(1.0 / false_alarm, 1e18) - 1.0 - 1e-9)  # 1/5e-324 is infinite
        raise ThresholdError(
            f"a false-alarm rate of {false_alarm:g} needs at least {needed} held-out calibration "
            f"inputs, but there are {n}: fit with more validation data or allow a higher rate"
        )
    p = conformal_p_values(calibration, calibration, weights=weights)
    accepted = calibration[p > false_alarm]
    return float(accepted[-1])


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X ≥ k) for X ~ Binomial(n, p), which is P(Beta(k, n − k + 1) ≤ p).

    Example:
        >>> binomial_tail(1, 2, 0.5)
        0.75
    """
    if k <= 0:
        return 1.0
    if k > n or p <= 0.0:
        return 0.0
    if p >= 1.0:
        return 1.0
    i = torch.arange(k, n + 1, dtype=torch.float64, device="cpu")
    top = torch.tensor(float(n), dtype=torch.float64, device="cpu")
    log_choose = torch.lgamma(top + 1) - torch.lgamma(i + 1) - torch.lgamma(top - i + 1)
    log_mass = log_choose + i * math.log(p) + (top - i) * math.log1p(-p)
    return min(1.0, float(log_mass.exp().sum()))


def _root(f: Callable[[float], float], target: float) -> float:
    """x in [0, 1] with f(x) = target, for rising f."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return (low + high) / 2


def beta_quantile(q: float, a: int, b: int) -> float:
    """The q-quantile of Beta(a, b) for whole a, b ≥ 1.

    Example:
        >>> round(beta_quantile(0.5, 1, 1), 6)
        0.5
    """
    return _root(lambda x: binomial_tail(a, a + b - 1, x), q)


def clopper_pearson_upper(errors: int, n: int, confidence: float) -> float:
    """The upper confidence bound of a rate after `errors` in `n` independent trials.

    Example:
        >>> round(clopper_pearson_upper(0, 59, 0.95), 3)
        0.05
    """
    if n == 0 or errors >= n:
        return 1.0
    return beta_quantile(confidence, errors + 1, n - errors)


def false_alarm_band(n: int, false_alarm: float, level: float = 0.9) -> tuple[float, float]:
    """Where the long-run false-alarm rate of one calibration with n inputs lies.

    The rate averages to at most `false_alarm` over calibrations; for a single one it follows
    Beta(l, n + 1 − l) with l = ⌊false_alarm·(n + 1)⌋.

    Example:
        >>> low, high = false_alarm_band(1000, 0.05)
        >>> round(low, 3), round(high, 3)
        (0.039, 0.062)
    """
    rank = math.floor(false_alarm * (n + 1) + 1e-9)
    if rank < 1:
        return 0.0, 0.0
    tail = (1.0 - level) / 2
    rest = n + 1 - rank
    return beta_quantile(tail, rank, rest), beta_quantile(1.0 - tail, rank, rest)


@dataclass(frozen=True)
class ErrorRateThreshold:
    """What `error_rate_threshold` found.

    Attributes:
        threshold: The score up to which an answer is accepted.
        coverage: The share of the calibration inputs that is accepted.
        error_rate: The error rate seen among the accepted ones.
        upper_bound: What the true rate does not exceed, with the asked-for confidence.

    Example:
        >>> ErrorRateThreshold(0.7, 0.9, 0.01, 0.019).coverage
        0.9
    """

    threshold: float
    coverage: float
    error_rate: float
    upper_bound: float


# Coverages that are tried. They are fixed beforehand, so a union bound over them is honest.
_COVERAGES = (1.0, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


def error_rate_threshold(
    scores: Tensor, wrong: Tensor, *, max_error: float, confidence: float = 0.95
) -> ErrorRateThreshold:
    """The largest coverage at which accepted answers are wrong at most `max_error` of the time.

    For a fixed k, the inputs below the k-th smallest score are independent draws given that
    score, so a Clopper–Pearson bound holds for their error rate; a union bound over a fixed list
    of coverages makes the choice among them valid with probability `confidence`.

    Args:
        scores: Held-out calibration scores [n], high = unsure.
        wrong: True where the network's answer is wrong, [n].
        max_error: The error rate that accepted answers may have.
        confidence: The probability, over calibration data, that the promise is true.

    Raises:
        ThresholdError: If no coverage reaches `max_error`; the message says which rate can be.

    Example:
        >>> import torch
        >>> scores = torch.linspace(0, 1, 1000)
        >>> found = error_rate_threshold(scores, scores > 0.9, max_error=0.02)
        >>> found.coverage
        0.9
    """
    if not 0.0 < max_error < 1.0:
        raise InputError(f"max_error must lie between 0 and 1, got {max_error}")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    if scores.shape != wrong.shape:
        raise InputError(
            f"scores and wrong must be equally long, got {scores.numel()} and {wrong.numel()}"
        )
    if not bool((scores < math.inf).any()) or bool(scores.isnan().any()):
        raise InputError("error-rate control needs calibration scores, none of them NaN")
    order = scores.to(torch.float64).argsort(stable=True)
    ranked, errors = scores.to(torch.float64)[order], wrong[order].to(torch.int64).cumsum(0)
    n = ranked.numel()
    each = 1.0 - (1.0 - confidence) / len(_COVERAGES)
    tried: list[ErrorRateThreshold] = []
    for coverage in _COVERAGES:
        # Strictly below the order statistic; equal scores are left out with it.
        cut = math.inf if coverage == 1.0 else float(ranked[math.floor(coverage * n)])
        k = int(torch.searchsorted(ranked, cut, right=False))
        if k == 0:
            continue
        seen = int(errors[k - 1])
        upper = clopper_pearson_upper(seen, k, each)
        accept_up_to = math.nextafter(cut, -math.inf)
        tried.append(ErrorRateThreshold(accept_up_to, k / n, seen / k, upper))
        if upper <= max_error:
            return tried[-1]
    best = min(tried, key=lambda found: found.upper_bound)
    reachable = _rounded_up(best.upper_bound)
    refusal = (
        f"an error rate of at most {max_error:.3g} cannot be promised with confidence "
        f"{confidence:g} from these {n} calibration inputs"
    )
    if reachable >= 1.0:
        raise ThresholdError(
            f"{refusal}, nor can any useful one: the network's answers are wrong on "
            f"{percent(best.error_rate, 0)} of them. Do the labels belong to its outputs, and are "
            f"there enough?"
        )
    raise ThresholdError(
        f"{refusal}; the lowest that can is {reachable:g}, accepting {percent(best.coverage, 0)} "
        f"of the inputs (error rate seen there: {best.error_rate:.3g}): allow more errors, ask for "
        f"less confidence, or fit with more validation data"
    )


def _rounded_up(rate: float) -> float:
    """To three digits, never down: asking for what a message offers must succeed."""
    step = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return math.ceil(rate / step) * step
