"""The table of scores: its columns, and what a prediction writes into them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from tulip_ood.data.batches import Batch
from tulip_ood.data.decoding import NOT_FETCHED
from tulip_ood.data.vanished import check_there
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.refusing import network_refuses

if TYPE_CHECKING:
    from tulip_ood.detectors.base import Detector
    from tulip_ood.detectors.prediction import Prediction

__all__ = ["NOT_FINITE", "check_fetched", "score_rows", "score_schema", "scored"]

_MANY = 16  # rows of which one at least should be there
TOP = 5  # most probable labels that are kept
NOT_FINITE = "the input, or what the network makes of it, is NaN or Inf"


def score_schema(task: str) -> Any:
    """The columns for a task; what a row lacks is null.

    `label` and `prediction` are class numbers; for "multilabel" lists of 0 and 1, for "regression"
    lists of numbers.

    Example:
        >>> score_schema("classification").names
        ['row', 'path', 'label', 'prediction', 'score', 'p_value', 'accepted', 'top_labels', \
'top_probs', 'error']
    """
    answers = {
        "classification": pa.int64(),
        "binary": pa.int64(),
        "multilabel": pa.list_(pa.int64()),
        "regression": pa.list_(pa.float64()),
    }
    if task not in answers:
        raise InputError(
            f"a table has one score a row, but task {task!r} gives one for every position: use "
            f"detector.predict from Python"
        )
    return pa.schema(
        [
            pa.field("row", pa.int64(), nullable=False),
            pa.field("path", pa.string(), nullable=False),
            pa.field("label", answers[task]),
            pa.field("prediction", answers[task]),
            pa.field("score", pa.float64()),
            pa.field("p_value", pa.float64()),
            pa.field("accepted", pa.bool_()),
            pa.field("top_labels", pa.list_(pa.int64())),
            pa.field("top_probs", pa.list_(pa.float64())),
            pa.field("error", pa.string()),
        ]
    )


def scored(detector: "Detector", batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch as the detector scores them.

    Args:
        detector: A fitted one.
        batch: The rows.

    Example:
        >>> import tulip_ood
        >>> from tulip_ood.data.source import Row
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 3
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> scored(detector, Batch([Row(7, "x#7", None)], x[7:8], [None], []))[0]["row"]
        7
    """
    if batch.inputs is None:
        return score_rows(detector.task.name, batch, None)
    try:
        prediction = detector.predict(batch.inputs)
    except RuntimeError as error:
        raise network_refuses(error, batch.inputs) from error
    return score_rows(detector.task.name, batch, prediction)


def check_fetched(rows: Sequence[Mapping[str, Any]], folders: Sequence[str] = ()) -> None:
    """Refuse a part of which a store gave no file, or that came from a folder that is gone.

    Else a run whose credentials have run out, or whose disk is lost, would go on to its end and be
    finished, with an error in every row. Single files that are missing or may not be read are rows
    with a reason.

    Args:
        rows: Those of a part.
        folders: Those that were `there` when the run began.

    Example:
        >>> check_fetched([{"path": "s3://lake/1.png", "error": f"{NOT_FETCHED}: no route"}] * 99)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: none of the 99 files from s3://lake/1.png on was given out: \
the file could not be fetched: no route. What is finished is kept: run the same command again to \
go on
    """
    bad = next((row for row in rows if row["error"]), None)
    if bad is not None:
        check_there(folders, bad["path"], bad["error"], ": what is finished is kept")
    if len(rows) < _MANY or not all((row["error"] or "").startswith(NOT_FETCHED) for row in rows):
        return
    raise DataError(
        f"none of the {len(rows):,} files from {rows[0]['path']} on was given out: "
        f"{rows[0]['error']}. What is finished is kept: run the same command again to go on"
    )


def score_rows(task: str, batch: Batch, prediction: "Prediction | None") -> list[dict[str, Any]]:
    """One dict a row, good and bad, in the order of the source.

    A row that could not be read, or not scored, has an `error`, is not accepted, and has neither
    prediction nor score.

    Args:
        task: What the outputs mean.
        batch: The rows.
        prediction: What the detector says of `batch.inputs`; None if there are none.

    Example:
        >>> from tulip_ood.data.batches import Unreadable
        >>> batch = Batch([], None, [], [Unreadable(0, "a.png", "the file is empty (0 bytes)")])
        >>> score_rows("classification", batch, None)[0]["accepted"]
        False
    """
    found = [_bad(e.row, e.path, _truth(task, e.label), e.reason) for e in batch.errors]
    if prediction is not None:
        found += _good(task, batch, prediction)
    return sorted(found, key=lambda row: int(row["row"]))


def _bad(row: int, path: str, label: Any, reason: str) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(score_schema("classification").names)
    changes = {"row": row, "path": _text(path), "label": label, "accepted": False, "error": reason}
    return empty | changes


def _good(task: str, batch: Batch, prediction: "Prediction") -> list[dict[str, Any]]:
    answers = prediction.label.squeeze(-1) if task == "binary" else prediction.label
    top_labels, top_probs = _top(task, prediction)
    columns = {
        "prediction": answers.tolist(),
        "score": prediction.score.tolist(),
        "p_value": prediction.p_value.tolist(),
        "accepted": prediction.accepted.tolist(),
    }
    rows = []
    for i, (number, path, label) in enumerate(batch.rows):
        truth = _truth(task, label)
        if columns["score"][i] == float("inf"):
            rows.append(_bad(number, path, truth, NOT_FINITE))
            continue
        row = {"row": number, "path": _text(path), "label": truth, "error": None}
        row |= {name: values[i] for name, values in columns.items()}
        row |= {"top_labels": top_labels[i], "top_probs": top_probs[i]}
        rows.append(row)
    return rows


def _top(task: str, prediction: "Prediction") -> tuple[list[Any], list[Any]]:
    """The most probable labels and their probabilities, equal ones by number."""
    if task == "regression":
        nothing = [None] * len(prediction)
        return nothing, nothing
    probs = prediction.probs
    if task == "binary":  # the probability of "yes" alone
        probs = torch.cat([1.0 - probs, probs], dim=-1)
    ranked = probs.sort(dim=-1, descending=True, stable=True)
    return ranked.indices[:, :TOP].tolist(), ranked.values[:, :TOP].tolist()


def _truth(task: str, label: Any) -> Any:
    """A label as the column holds it; None where it does not fit (a class name's number, say)."""
    if label is None:
        return None
    if task in ("classification", "binary"):
        return int(label) if float(label).is_integer() else None
    values = torch.as_tensor(label).reshape(-1).tolist()
    return [int(v) for v in values] if task == "multilabel" else [float(v) for v in values]


def _text(path: str) -> str:
    """A path that parquet can hold: names in unknown encodings are written with escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
