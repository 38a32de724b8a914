"""Quantiles are NumPy's, of as many values as there are."""

import math

import numpy as np
import pytest
import torch

from tulip_ood.numerics.quantiles import quantiles

LEVELS = (0.0, 0.05, 0.16, 0.5, 0.84, 0.999, 1.0)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_as_numpy(n: int) -> None:
    values = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    expected = np.quantile(values.double().numpy(), LEVELS)
    assert quantiles(values, LEVELS) == pytest.approx(expected.tolist(), abs=1e-12)


def test_more_than_torch_takes() -> None:
    values = torch.arange(17_000_000, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values, 0.5)
    assert quantiles(values, [0.5]) == [8_499_999.5]


def test_infinite_values_stay_where_they_are() -> None:
    values = torch.tensor([1.0, 2.0, math.inf])
    assert quantiles(values, (0.0, 0.5, 0.75, 1.0)) == [1.0, 2.0, math.inf, math.inf]
