"""Places in a sorted row: PyTorch's search, without its threads."""

import math

import pytest
import torch
from torch import Tensor

from tulip_ood.numerics.places import places

HARD = torch.tensor([-math.inf, -1.0, -0.0, 0.0, 1e-300, 2.0, 2.5, math.inf, math.nan]).double()


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize(
    "values",
    [HARD, HARD[1:7].reshape(2, 3), HARD.reshape(3, 3).T, torch.tensor(2.0).double(), HARD[:0]],
    ids=["a row", "a table", "a transposed one", "a number", "nothing"],
)
@pytest.mark.parametrize(
    "rising",
    [[], [2.0], [-1.0, 0.0, 0.0, 2.0, 2.0, 7.0], [-math.inf, 1.0, math.inf, math.inf]],
    ids=["nothing", "one", "equal ones", "infinite ones"],
)
def test_as_torch_finds_them(rising: list[float], values: Tensor, right: bool) -> None:
    row = torch.tensor(rising, dtype=torch.float64)
    expected = torch.searchsorted(row, values.contiguous(), right=right)
    found = places(row, values, right=right)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found, expected)


def test_on_the_cpu_whatever_the_default_device_is() -> None:
    row = torch.arange(3.0, dtype=torch.float64)
    with torch.device("meta"):
        assert places(row, row).device.type == "cpu"
