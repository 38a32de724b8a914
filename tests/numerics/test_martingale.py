"""The drift test keeps its promise, whatever the scores are like, and notices drift."""

import math

import pytest
import torch

from tulip_ood.errors import InputError
from tulip_ood.numerics.anytime import anytime_interval
from tulip_ood.numerics.martingale import _merge, log_capital, online_p_values
from tulip_ood.numerics.thresholds import conformal_p_values


def slowly(calibration: torch.Tensor, scores: torch.Tensor) -> tuple[list[int], list[int]]:
    """How many earlier ones lie above each score, and how many are equal: by counting."""
    above, equal, seen = [], [], calibration.tolist()
    for score in scores.tolist():
        above.append(sum(one > score for one in seen))
        equal.append(sum(one == score for one in seen))
        seen.append(score)
    return above, equal


def test_p_values_are_ranks_among_all_that_came_before() -> None:
    generator = torch.Generator().manual_seed(0)
    calibration = torch.randint(9, (40,), generator=generator).double()
    scores = torch.randint(9, (2100,), generator=generator).double()
    scores[7] = math.inf
    p = online_p_values(calibration, scores)
    above, equal = slowly(calibration, scores)
    for i, value in enumerate(p.tolist()):
        n = 40 + i + 1
        assert above[i] / n <= value <= (above[i] + equal[i] + 1) / n
    assert torch.equal(p, online_p_values(calibration.flip(0), scores))
    assert not torch.equal(p, online_p_values(calibration, scores, seed=1))


def test_a_long_log_is_not_sorted_again_for_every_block() -> None:
    """Few sorted runs of falling lengths: every value is sorted log n times, not n."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(64 * 101, generator=generator, dtype=torch.float64)
    runs: list[torch.Tensor] = []
    touched = 0
    for block in values.split(64):
        before = {id(run) for run in runs}
        _merge(runs, block)
        touched += sum(len(run) for run in runs if id(run) not in before)
        lengths = [len(run) for run in runs]
        assert lengths == sorted(lengths, reverse=True)
        assert len(runs) <= 8
    assert touched <= len(values) * 8
    assert torch.equal(torch.cat(runs).sort().values, values.sort().values)
    assert all(torch.equal(run, run.sort().values) for run in runs)


def test_p_values_of_exchangeable_scores_are_uniform_and_independent() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for seed in range(300):
        scores = torch.randn(60, generator=generator).mul(3).round()  # with many ties
        rows.append(online_p_values(scores[:20], scores[20:], seed=seed))
    p = torch.stack(rows)
    counts = torch.histc(p, 20, 0.0, 1.0)
    expected = p.numel() / 20
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 45.3  # 99.94 % of a chi-square with 19 degrees of freedom
    neighbours = torch.corrcoef(torch.stack([p[:, :-1].flatten(), p[:, 1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 4 / math.sqrt(p.numel())


@pytest.mark.parametrize("alpha", [0.2, 0.05])
def test_without_drift_an_alarm_is_as_rare_as_promised(alpha: float) -> None:
    """The largest capital over a whole run, in 3,000 runs."""
    generator = torch.Generator().manual_seed(2)
    p = torch.rand(3000, 400, generator=generator, dtype=torch.float64)
    alarms = float((log_capital(p).amax(dim=1) >= -math.log(alpha)).double().mean())
    assert alarms <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / 3000)
    assert alarms > alpha / 20  # it bets at all


def test_every_bet_is_fair() -> None:
    """Whatever came first, the mean capital over the next p-value is the capital before it."""
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    half, weight = u**7 / 2, 7 * u**6 / 2 / 20_000  # so that the poles at 0 and 1 are integrable
    p, weights = torch.cat([half, 1 - half]), torch.cat([weight, weight])
    for first in (0.001, 0.4, 0.999):
        capital = log_capital(torch.stack([torch.full_like(p, first), p], dim=1)).exp()
        mean = float((capital[:, 1] * weights).sum())
        assert mean == pytest.approx(float(capital[0, 0]), rel=1e-4)


def test_the_usual_p_values_would_raise_a_false_alarm() -> None:
    """Why each input joins those it is compared with: one calibration set is never quite right."""
    generator = torch.Generator().manual_seed(4)
    fixed, online = [], []
    for seed in range(15):
        scores = torch.randn(1530, generator=generator, dtype=torch.float64)
        calibration, new = scores[:30].sort().values, scores[30:]
        fixed.append(conformal_p_values(calibration, new))
        online.append(online_p_values(calibration, new, seed=seed))
    alarms = [
        int((log_capital(torch.stack(kind)).amax(dim=1) >= math.log(100)).sum())
        for kind in (fixed, online)
    ]
    assert alarms[0] >= 7
    assert alarms[1] <= 1


def noticed(p: torch.Tensor) -> torch.Tensor:
    """At which input 100 : 1 is reached in each row; the row's length if never."""
    reached = log_capital(p) >= math.log(100)
    first = reached.to(torch.int8).argmax(dim=-1)
    return torch.where(reached.any(dim=-1), first, p.shape[-1])


def test_drift_is_noticed_from_the_start_or_late_to_either_side() -> None:
    generator = torch.Generator().manual_seed(5)
    uniform = torch.rand(20, 2600, generator=generator, dtype=torch.float64)
    short, other = uniform[:, :400], uniform[:, 400:800]
    assert bool((noticed(short**2) < 150).all())  # odder
    assert bool((noticed(1 - short**2) < 150).all())  # plainer
    assert bool((noticed((short + other) / 2) < 200).all())  # all alike
    late = noticed(torch.cat([uniform[:, :2000], uniform[:, 2000:] ** 2], dim=1))
    assert bool(((late > 2000) & (late < 2300)).all())


def test_half_an_odd_stream_is_noticed_through_scores() -> None:
    generator = torch.Generator().manual_seed(6)
    inside = torch.randn(700, generator=generator, dtype=torch.float64)
    odd = 1.5 + torch.randn(400, generator=generator, dtype=torch.float64)
    mixed = torch.where(torch.arange(400) % 2 == 0, odd, inside[300:])
    assert noticed(online_p_values(inside[:300], mixed)) < 200
    assert noticed(online_p_values(inside[:300], inside[300:])) == 400


def test_nothing_yet_and_what_is_no_p_value() -> None:
    assert log_capital(torch.empty(0)).shape == (0,)
    assert online_p_values(torch.empty(0), torch.tensor([1.0])).numel() == 1
    with pytest.raises(InputError, match="between 0 and 1"):
        log_capital(torch.tensor([0.5, 1.5]))
    with pytest.raises(InputError, match="NaN"):
        online_p_values(torch.tensor([math.nan]), torch.tensor([1.0]))


# ------------------------------------------------------------------------- rates


def test_the_interval_covers_the_rate_at_all_times_at_once() -> None:
    generator = torch.Generator().manual_seed(7)
    rate, runs, missed = 0.08, 200, 0
    for _ in range(runs):
        hits = (torch.rand(600, generator=generator) < rate).cumsum(0).tolist()
        looks = range(1, 600, 11)
        intervals = [anytime_interval(hits[n - 1], n) for n in looks]
        missed += not all(low <= rate <= high for low, high in intervals)
    assert missed / runs <= 0.05


@pytest.mark.parametrize(("events", "trials"), [(0, 50), (50, 50), (3, 50), (999, 20000)])
def test_the_interval_holds_what_was_seen(events: int, trials: int) -> None:
    low, high = anytime_interval(events, trials)
    assert 0.0 <= low <= events / trials <= high <= 1.0
    wider = anytime_interval(events, trials, confidence=0.999)
    assert wider[0] <= low
    assert high <= wider[1]
    assert high - low < 8 / math.sqrt(trials)


def test_what_is_no_rate() -> None:
    with pytest.raises(InputError, match="between 0 and trials"):
        anytime_interval(3, 2)
    with pytest.raises(InputError, match="confidence"):
        anytime_interval(1, 2, confidence=1.0)
