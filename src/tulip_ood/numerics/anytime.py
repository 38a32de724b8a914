"""An interval for a rate that holds at all times at once, however often one looks."""

import math

from tulip_ood.errors import InputError

__all__ = ["anytime_interval"]


def anytime_interval(events: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """A confidence sequence for the rate of independent yes/no trials.

    With probability `confidence` the true rate lies in the intervals of *all* times together, so
    that one may look every day and stop when one likes; a Clopper–Pearson interval promises this
    for one look only. Robbins' mixture: a rate q stays in while the likelihood of q is more than
    1 − confidence times its average over a uniform prior.

    Args:
        events: How often it happened.
        trials: Out of how many.
        confidence: The probability that the promise is true.

    Example:
        >>> low, high = anytime_interval(50, 1000)
        >>> round(low, 3), round(high, 3)
        (0.028, 0.08)
        >>> anytime_interval(0, 0)
        (0.0, 1.0)
    """
    if not 0 <= events <= trials:
        raise InputError(f"events must lie between 0 and trials, got {events} of {trials}")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    if trials == 0:
        return 0.0, 1.0
    others = trials - events
    # ∫ q^k (1−q)^(n−k) dq, the average likelihood
    average = math.lgamma(events + 1) + math.lgamma(others + 1) - math.lgamma(trials + 2)
    limit = average + math.log(1.0 - confidence)
    peak = events / trials
    low = 0.0 if events == 0 else _edge(0.0, peak, events, others, limit)
    high = 1.0 if others == 0 else _edge(1.0, peak, events, others, limit)
    return low, high


def _edge(outside: float, inside: float, events: int, others: int, limit: float) -> float:
    """Where the likelihood falls to its limit, between a rate that is out and one that is in."""
    for _ in range(60):
        middle = (outside + inside) / 2
        value = events * math.log(middle) if events else 0.0
        value += others * math.log1p(-middle) if others else 0.0
        outside, inside = (middle, inside) if value <= limit else (outside, middle)
    return outside
