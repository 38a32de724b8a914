"""Differences and their standard errors, against brute force and against chance."""

import math

import pytest
import torch
from torch import Tensor

from tulip_ood.benchmark.paired import (
    aurc_difference,
    auroc_difference,
    mean_auroc_difference,
)
from tulip_ood.numerics import metrics


def scores(seed: int, n: int, m: int, gain: float = 0.0) -> tuple[tuple[Tensor, Tensor], ...]:
    """Two correlated scores of the same inputs; the second separates better by `gain`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    inside, outside = draw(n), draw(m) + 1
    first = inside + 0.5 * draw(n), outside + 0.5 * draw(m)
    second = inside + 0.5 * draw(n), outside + 0.5 * draw(m) + gain
    return first, second


def delong(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """The standard error by its definition: a kernel for every pair of inputs."""
    kernels = []
    for inside, outside in (first, second):
        above = (outside[None] > inside[:, None]).to(torch.float64)
        kernels.append(above + 0.5 * (outside[None] == inside[:, None]).to(torch.float64))
    difference = kernels[1] - kernels[0]
    by_id, by_ood = difference.mean(dim=1), difference.mean(dim=0)
    return math.sqrt(float(by_id.var() / len(by_id) + by_ood.var() / len(by_ood)))


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_difference_is_delongs(rounded: bool) -> None:
    first, second = scores(0, 60, 45, gain=0.4)
    if rounded:  # many ties
        first, second = (tuple(part.round() for part in each) for each in (first, second))
    found = auroc_difference(first, second)
    assert found.value == pytest.approx(metrics.auroc(*second) - metrics.auroc(*first), abs=1e-12)
    assert found.error == pytest.approx(delong(first, second), rel=1e-12)


def test_auroc_difference_is_rarely_clear_by_chance() -> None:
    clear = sum(auroc_difference(*scores(seed, 100, 80)).clear for seed in range(400))
    assert clear / 400 < 0.08
    assert all(auroc_difference(*scores(seed, 100, 80, gain=1.5)).clear for seed in range(20))


def test_one_input_is_no_evidence_of_spread() -> None:
    one = torch.tensor([1.0])
    assert auroc_difference((one, one), (one, one + 1)).error == 0.0


def test_aurc_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    wrong = (torch.rand(400, generator=generator) < 0.2).to(torch.float64)
    noise = torch.rand(400, generator=generator, dtype=torch.float64)
    good = wrong + noise
    found = aurc_difference(noise, good, wrong)
    assert found.value == metrics.aurc(good, wrong) - metrics.aurc(noise, wrong)
    assert found.clear
    assert found.value < 0
    assert aurc_difference(good, good, wrong) == (0.0, 0.0)
    assert found == aurc_difference(noise, good, wrong)


def test_sets_that_share_their_id_inputs_are_not_independent() -> None:
    """The error of a mean over sets, against what chance does over many draws."""
    gaps, errors = [], []
    for seed in range(300):
        first, second = scores(seed, 80, 120)
        halves = [(inside, [outside[:70], outside[70:]]) for inside, outside in (first, second)]
        found = mean_auroc_difference(*halves)
        gaps.append(found.value)
        errors.append(found.error)
        each = [
            auroc_difference(*((inside, parts[i]) for inside, parts in halves)).value
            for i in (0, 1)
        ]
        assert found.value == pytest.approx(sum(each) / 2)
    spread = float(torch.tensor(gaps).std())
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.1)
