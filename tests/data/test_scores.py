"""What a prediction writes into the table, for every task."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from tulip_ood.data.batches import Batch, Unreadable
from tulip_ood.data.scores import NOT_FINITE, score_rows, score_schema
from tulip_ood.data.source import Label, Row
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.errors import InputError


def predicted(label: torch.Tensor, probs: torch.Tensor, score: list[float]) -> Prediction:
    n = len(score)
    scores = torch.tensor(score, dtype=torch.float64)
    return Prediction(label, probs, scores, torch.full((n,), 0.5), scores < 1.0, ())


def rows_of(task: str, labels: list[Label], prediction: Prediction) -> list[dict[str, object]]:
    rows = [Row(2 * i, f"{i}.png", label) for i, label in enumerate(labels)]
    unreadable = Unreadable(1, "bad\udcff.png", "why", labels[0])
    batch = Batch(rows, torch.zeros(len(rows), 1), labels, [unreadable])
    found = score_rows(task, batch, prediction)
    return pa.Table.from_pylist(found, schema=score_schema(task)).to_pylist()


def test_classes() -> None:
    probs = torch.tensor([[0.25, 0.25, 0.5], [0.2, 0.7, 0.1]], dtype=torch.float64)
    prediction = predicted(torch.tensor([2, 0]), probs, [0.1, 2.0])
    first, bad, second = rows_of("classification", [2, None], prediction)
    assert first["top_labels"] == [2, 0, 1]  # equal ones by number
    assert first["top_probs"] == [0.5, 0.25, 0.25]
    assert (first["label"], first["prediction"], first["accepted"]) == (2, 2, True)
    assert (second["label"], second["prediction"], second["accepted"]) == (None, 0, False)
    assert bad["row"] == 1
    assert bad["error"] == "why"
    assert bad["path"] == r"bad\xff.png"
    assert bad["label"] == 2  # the truth is known, although the picture is not
    empty = ("prediction", "score", "p_value", "top_labels", "top_probs")
    assert all(bad[name] is None for name in empty)


def test_a_row_without_a_score_says_so() -> None:
    prediction = predicted(torch.tensor([0]), torch.tensor([[1.0, 0.0]]), [math.inf])
    row = rows_of("classification", [1], prediction)[0]
    assert (row["error"], row["score"], row["accepted"], row["label"]) == (
        NOT_FINITE,
        None,
        False,
        1,
    )


def test_other_tasks() -> None:
    yes = predicted(torch.tensor([[1]]), torch.tensor([[0.75]]), [0.1])
    row = rows_of("binary", [1], yes)[0]
    assert (row["prediction"], row["top_labels"], row["top_probs"]) == (1, [1, 0], [0.75, 0.25])
    no = predicted(torch.tensor([[0]]), torch.tensor([[0.25]]), [0.1])
    row = rows_of("binary", [0], no)[0]
    assert (row["prediction"], row["top_labels"], row["top_probs"]) == (0, [0, 1], [0.75, 0.25])
    several = predicted(torch.tensor([[1, 0]]), torch.tensor([[0.75, 0.5]]), [0.1])
    row = rows_of("multilabel", [np.array([1, 1])], several)[0]
    assert (row["label"], row["prediction"], row["top_labels"]) == ([1, 1], [1, 0], [0, 1])
    bad = rows_of("multilabel", [np.array([1, 1])], several)[1]
    assert (bad["label"], bad["error"]) == ([1, 1], "why")
    number = predicted(torch.tensor([[2.5]]), torch.tensor([[2.25]]), [0.1])
    row = rows_of("regression", [3.5], number)[0]
    assert (row["label"], row["prediction"], row["top_labels"]) == ([3.5], [2.5], None)


def test_dense_prediction_is_refused() -> None:
    with pytest.raises(InputError, match="every position"):
        score_schema("dense")
