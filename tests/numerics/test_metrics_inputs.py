"""What metrics take: numbers in any container, and what they refuse."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.numerics.plain_metrics import PAIRED, SELECTIVE

from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics

AS = {
    "list": lambda v: v,
    "tuple": tuple,
    "float32": lambda v: torch.tensor(v, dtype=torch.float32),
    "float64": lambda v: torch.tensor(v, dtype=torch.float64),
    "requires_grad": lambda v: torch.tensor(v, requires_grad=True),
    "two-dimensional": lambda v: torch.tensor(v).reshape(2, -1),
    "strided": lambda v: torch.tensor([v, v]).T[:, 0],
    "numpy": np.array,
    "numpy float32": lambda v: np.array(v, dtype=np.float32),
    "numpy reversed": lambda v: np.array(v[::-1])[::-1],
    "numpy read-only": lambda v: np.frombuffer(np.array(v).tobytes()),
}


@pytest.mark.parametrize("kind", AS)
def test_numbers_may_come_in_any_container(kind: str) -> None:
    inside, outside = [0.25, 0.5, 0.5, 2.0], [0.5, 0.75, -1.0, 4.0]
    wrong = [0, 1, 0, 1]
    for metric in PAIRED.values():
        assert metric(AS[kind](inside), AS[kind](outside)) == metric(inside, outside)
    for metric in SELECTIVE.values():
        assert metric(AS[kind](inside), wrong) == metric(inside, wrong)
    assert metrics.ece(AS[kind]([0.25, 0.5]), [1, 0]) == metrics.ece([0.25, 0.5], [1, 0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_wrong_may_have_any_dtype(dtype: torch.dtype) -> None:
    wrong = torch.tensor([0, 1, 0, 1], dtype=dtype)
    assert metrics.aurc([0.1, 0.2, 0.3, 0.4], wrong) == pytest.approx(
        (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4
    )


def test_lists_keep_their_double_precision() -> None:
    """Python numbers are doubles: two that differ in the 13th digit are no tie."""
    assert metrics.auroc([0.3], [0.3 + 1e-13]) == 1.0
    assert metrics.auroc([0.3], torch.tensor([0.3], dtype=torch.float64)) == 0.5


def test_scores_of_two_precisions_are_compared_as_they_are() -> None:
    single = torch.tensor([0.1], dtype=torch.float32)  # a little above 0.1
    assert metrics.auroc(torch.tensor([0.1], dtype=torch.float64), single) == 1.0


@pytest.mark.parametrize("name", [*PAIRED, "roc_curve"])
def test_pairs_refuse_nan_and_nothing(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match="id_scores contains 1 NaN"):
        metric([0.1, math.nan], [0.2])
    with pytest.raises(InputError, match="ood_scores contains 2 NaN"):
        metric([0.1], torch.tensor([math.nan, 0.0, math.nan]))
    with pytest.raises(InputError, match="id_scores is empty"):
        metric([], [0.2])
    with pytest.raises(InputError, match="ood_scores is empty"):
        metric([0.1], np.array([]))


@pytest.mark.parametrize("name", ["aurc", "augrc", "risk_coverage", "ece", "reliability"])
def test_answers_refuse_nan_nothing_and_unequal_lengths(name: str) -> None:
    metric = getattr(metrics, name)
    with pytest.raises(InputError, match="contains 1 NaN"):
        metric([0.1, math.nan], [0, 1])
    with pytest.raises(InputError, match="contains 1 NaN"):
        metric([0.1, 0.2], [0, math.nan])
    with pytest.raises(InputError, match="is empty"):
        metric([], [])
    with pytest.raises(InputError, match="equally long, got 2 and 3"):
        metric([0.1, 0.2], [0, 1, 1])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, math.nan])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="a share must lie above 0"):
        metrics.id_flagged_at_95_ood([0.1], [0.2], caught=share)
    with pytest.raises(InputError, match="a share must lie above 0"):
        metrics.ood_missed_at_95_id([0.1], [0.2], kept=share)


def test_calibration_refuses_what_is_no_probability() -> None:
    with pytest.raises(InputError, match="must lie in 0…1, got 0.5 to 7"):
        metrics.ece([0.5, 7.0], [1, 0])
    with pytest.raises(InputError, match="bins must be at least 1, got 0"):
        metrics.reliability([0.5], [1], bins=0)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.accuracy])
def test_labels_must_fit_the_outputs(metric: Callable[..., float]) -> None:
    """[N, 1] would be compared with [N] as a table; that is refused, not averaged."""
    outputs = torch.full((3, 2), 0.5)
    with pytest.raises(InputError, match=r"need labels of shape \[3\], got \[3, 1\]"):
        metric(outputs, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(InputError, match="empty"):
        metric(outputs[:0], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InputError, match="contain 1 NaN"):
        metric(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]))
