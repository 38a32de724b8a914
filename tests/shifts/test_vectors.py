"""Pseudo-OOD for rows of numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tulip_ood.shifts.kinds import Range
from tulip_ood.shifts.vectors import mixed_rows, noisy_rows, permuted_columns

PROPERTY = settings(deadline=None, max_examples=40)
SHAPES = st.sampled_from([(2, 1), (2, 5), (7, 3), (4, 2, 3)])


def rows(shape: tuple[int, ...]) -> Tensor:
    """All numbers different, so that each can be followed."""
    return torch.arange(float(torch.tensor(shape).prod())).reshape(shape)


def limits(x: Tensor) -> tuple[Tensor, Tensor]:
    found = Range.of(x)
    return found.low, found.high


@PROPERTY
@given(SHAPES, st.integers(0, 1000))
def test_mixed_rows_take_every_number_from_one_of_two_rows(
    shape: tuple[int, ...], seed: int
) -> None:
    x = rows(shape)
    out = mixed_rows(x, *limits(x), seed)
    others = set()
    for i, (before, after) in enumerate(zip(x, out, strict=True)):
        partners = [
            j for j in range(len(x)) if j != i and bool(((after == before) | (after == x[j])).all())
        ]
        assert partners
        others.update(partners)
    assert out.shape == x.shape


def test_mixed_rows_take_about_half_from_each() -> None:
    x = rows((50, 400))
    out = mixed_rows(x, *limits(x), 0)
    kept = int((out == x).sum())
    assert stats.binomtest(kept, 50 * 400, 0.5).pvalue > 1e-3


@PROPERTY
@given(SHAPES, st.integers(0, 1000))
def test_permuted_columns_keep_the_numbers_of_every_row(shape: tuple[int, ...], seed: int) -> None:
    x = rows(shape)
    out = permuted_columns(x, *limits(x), seed)
    assert out.shape == x.shape
    for before, after in zip(x, out, strict=True):
        assert sorted(after.flatten().tolist()) == before.flatten().tolist()


def test_permuted_columns_have_an_order_of_their_own() -> None:
    x = torch.arange(20.0).expand(30, 20)
    out = permuted_columns(x, *limits(x), 0)
    assert len({tuple(row) for row in out.tolist()}) == 30


def test_noisy_rows_add_noise_as_large_as_each_columns_deviation() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.01, 1.0, 50.0])
    x = scale * torch.randn(5000, 3, generator=generator)
    unit = (noisy_rows(x, *limits(x), 0) - x) / x.std(dim=0, correction=0)
    for column in unit.T:
        assert stats.kstest(column.double().numpy(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(unit.T.numpy()) - np.eye(3)).max() < 0.06


@pytest.mark.parametrize("kind", [mixed_rows, permuted_columns, noisy_rows])
def test_a_single_row_gives_numbers(kind: object) -> None:
    """Without another row nothing can be mixed; nothing becomes NaN either."""
    x = torch.tensor([[1.0, 2.0, 3.0]])
    out = kind(x, *limits(x), 0)  # type: ignore[operator]
    assert sorted(out.flatten().tolist()) == [1.0, 2.0, 3.0]
