"""False alarms of fitted detectors stay where they are promised, over many random splits."""

from typing import Any

import pytest
import torch
from scipy.stats import betabinom

import tulip_ood
from tulip_ood.network.running import run_passes


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize(
    ("n", "splits", "at_least"),
    # .9 is expected; three standard errors below it, five where the rate is approximate.
    [(600, 300, 0.848), (120, 150, 0.778)],
    ids=["halves", "cross-fitted"],
)
def test_false_alarms_over_random_splits(
    vectors: Any, n: int, splits: int, at_least: float
) -> None:
    """TULiP is fitted anew on every split; the band of 90 % of the law holds 90 % of them."""
    detector = tulip_ood.Tulip(vectors.model, n_samples=4)
    x = torch.cat([vectors.val[0], vectors.test[0]])
    y = torch.cat([vectors.val[1], vectors.test[1]])
    detector.fit([(x, y)], recipe="balanced")
    passes = run_passes(
        detector.engine.perturbation(detector._settings()), x, batch_size=600, labels=y
    )
    generator = torch.Generator().manual_seed(0)
    alarms = []
    for _ in range(splits):
        order = torch.randperm(len(x), generator=generator)
        fitted = tulip_ood.Tulip(vectors.model, n_samples=4)
        fitted.fit(passes.take(order[:n]), recipe="balanced")
        flagged = ~fitted.predict(passes.take(order[n:])).accepted
        alarms.append(int(flagged.sum()))
    # The split of a fixed set has exactly this law; cross-fitting comes near it.
    held = n // 2 if n >= 400 else n
    rank = int(0.05 * (held + 1))
    law = betabinom(len(x) - n, rank, held + 1 - rank)
    low, high = law.interval(0.9)
    counts = torch.tensor(alarms, dtype=torch.float64)
    inside = ((counts >= low) & (counts <= high)).double().mean()
    error = law.std() / splits**0.5
    assert abs(counts.mean() - law.mean()) < 4 * error
    assert inside > at_least
