"""From logged scores: have the inputs drifted, and how often is something refused?

Inputs are judged by detector version, in the order in which they were logged. What is promised
stands in `numerics.martingale` and `numerics.anytime`: both hold however often one looks.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tulip_ood.data.remote import is_remote
from tulip_ood.detectors.saving import read
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.looks import absent, looks_like
from tulip_ood.numerics import random
from tulip_ood.numerics.anytime import anytime_interval
from tulip_ood.numerics.martingale import log_capital, online_p_values
from tulip_ood.wording import from_json

__all__ = ["Refused", "Stream", "Watched", "read_streams", "watch"]

_TORN = 10  # lines that may be damaged, or a hundredth of them
_PROMISES = ("false_alarm", "max_error")
_COLUMNS = ("score", "accepted", "error")  # of a table


@dataclass
class Stream:
    """What one version of a detector has scored, in order.

    Attributes:
        version: Which detector.
        calibration: Its held-out ID scores, or None if no log and no file tells them.
        scores: One an input; +inf where there was none.
        accepted: What was decided.
        promises: What was promised at the time, for instance ("false_alarm", 0.05), or None.
        times: Seconds since 1970, or None.
        unreadable: Inputs that could not be read; they are left out.
        mixed: Whether rows of a table are among them, which were taken in random order.

    Example:
        >>> Stream("abc", None).scores
        []
    """

    version: str
    calibration: Tensor | None
    scores: list[float] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    promises: list[tuple[str, float] | None] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    unreadable: int = 0
    mixed: bool = False

    def add(
        self,
        score: float | None,
        accepted: bool,
        promise: tuple[str, float] | None = None,
        time: float | None = None,
    ) -> None:
        """One more input."""
        self.scores.append(math.inf if score is None else score)
        self.accepted.append(accepted)
        self.promises.append(promise)
        self.times.append(time)


@dataclass(frozen=True)
class Refused:
    """How often something was refused while one promise held.

    If all inputs were in-distribution, this is the false-alarm rate.

    Attributes:
        promise: What was promised, for instance ("false_alarm", 0.05), or None if unknown.
        inputs: How many were judged.
        refused: How many of them were refused.
        low: The lower end of the interval.
        high: The upper end: with the asked-for confidence the rate lies between, at all times.

    Example:
        >>> Refused(("false_alarm", 0.05), 100, 7, 0.02, 0.16).rate
        0.07
    """

    promise: tuple[str, float] | None
    inputs: int
    refused: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The share that was refused."""
        return self.refused / self.inputs


@dataclass(frozen=True)
class Watched:
    """What is known about one version.

    Attributes:
        version: Which detector.
        inputs: How many it has judged.
        unreadable: How many could not be read, beside those.
        drifted: Whether the evidence ever reached 1/α; None without calibration scores.
        evidence: The largest capital of a bettor against "no drift", as log10; None as above.
        now: The capital at the end, as log10; None as above.
        noticed: The number of the input at which 1/α was reached, or None.
        noticed_at: Its time, in seconds since 1970, if it was logged.
        buckets: p-values of inputs so far, in 20 equal buckets; flat means no drift.
        refusals: The share refused, for each promise that held.
        mixed: Whether rows of tables were taken in random order: then `noticed` is no time.

    Example:
        >>> list(Watched.__dataclass_fields__)[:2]
        ['version', 'inputs']
    """

    version: str
    inputs: int
    unreadable: int
    drifted: bool | None
    evidence: float | None
    now: float | None
    noticed: int | None
    noticed_at: float | None
    buckets: tuple[int, ...]
    refusals: tuple[Refused, ...]
    mixed: bool

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        refusals = [asdict(one) | {"rate": one.rate} for one in self.refusals]
        return asdict(self) | {"refusals": refusals}


def watch(
    stream: Stream, *, alpha: float = 0.01, confidence: float = 0.95, seed: int = 0
) -> Watched:
    """Test one stream for drift, and count its refusals.

    Args:
        stream: What was logged.
        alpha: The chance of a false alarm, ever, however often one looks.
        confidence: Of the intervals of refusal rates, at all times at once.
        seed: Decides how ties are broken.

    Example:
        >>> import torch
        >>> stream = Stream("abc", torch.linspace(0, 1, 200))
        >>> for score in torch.linspace(0.9, 1.4, 100).tolist():
        ...     stream.add(score, score < 0.95)
        >>> found = watch(stream)
        >>> found.drifted, found.refusals[0].refused
        (True, 90)
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
    drifted = evidence = now = noticed = noticed_at = None
    buckets: tuple[int, ...] = ()
    if stream.calibration is not None and stream.scores:
        scores = torch.tensor(stream.scores, dtype=torch.float64)
        p = online_p_values(stream.calibration, scores, seed=seed)
        capital = log_capital(p)
        evidence = float(capital.max()) / math.log(10)
        now = float(capital[-1]) / math.log(10)
        reached = (capital >= -math.log(alpha)).nonzero()
        drifted = bool(len(reached))
        if drifted:
            noticed = int(reached[0])
            noticed_at = stream.times[noticed]
        counts = torch.bincount((p * 20).long().clamp_max(19), minlength=20)
        buckets = tuple(counts.tolist())
    refusals = tuple(_refusals(stream, confidence))
    return Watched(
        stream.version,
        len(stream.scores),
        stream.unreadable,
        drifted,
        evidence,
        now,
        noticed,
        noticed_at,
        buckets,
        refusals,
        stream.mixed,
    )


def _refusals(stream: Stream, confidence: float) -> Iterator[Refused]:
    for promise in dict.fromkeys(stream.promises):
        pairs = zip(stream.promises, stream.accepted, strict=True)
        decisions = [accepted for held, accepted in pairs if held == promise]
        refused = len(decisions) - sum(decisions)
        low, high = anytime_interval(refused, len(decisions), confidence=confidence)
        yield Refused(promise, len(decisions), refused, low, high)


# ------------------------------------------------------------------------- reading


def read_streams(
    logs: Sequence[str | os.PathLike[str]],
    *,
    detectors: Sequence[str | os.PathLike[str]] = (),
    in_order: bool = False,
) -> list[Stream]:
    """What is in logs, by detector version.

    Args:
        logs: Files of `tulip serve --log` (JSON lines) and tables of `tulip score` (parquet, or
            folders of parts), in order.
        detectors: The files of detectors whose calibration scores no log tells: parquet needs
            them.
        in_order: Take the rows of tables as they stand, because they came in that order; rows of
            folders stand class by class, which is none, and are taken in random order.

    Example:
        >>> read_streams(["nowhere.jsonl"])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: there is no log nowhere.jsonl
    """
    found: dict[str, Stream] = {}
    known = {_version_of_file(path): path for path in detectors}
    for log in logs:
        path = Path(log)
        if is_remote(str(log)) or path.is_dir():
            _read_table(str(log), found, in_order)
        elif not path.is_file():
            raise DataError(f"there is no log {path}")
        elif path.suffix == ".parquet":
            _read_table(path, found, in_order)
        else:
            _read_lines(path, found)
    for stream in found.values():
        if stream.calibration is None and stream.version in known:
            stream.calibration = read(known[stream.version]).calibration.scores
    return list(found.values())


def _version_of_file(path: str | os.PathLike[str]) -> str:
    from tulip_ood.data.parts import digest_of_file

    if not Path(path).is_file():
        raise DataError(absent(path, "detector file"))
    return digest_of_file(path)[:12]


def _read_lines(path: Path, found: dict[str, Stream]) -> None:
    torn = strange = number = 0
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                values = from_json(line)
            except ValueError:
                torn += 1  # the end of a full disk, or a line that is being written
                strange += not line.startswith("{")
                if torn > max(_TORN, number // 100):
                    raise DataError(f"{path} is no log of `tulip serve`: it is no JSON") from None
                continue
            try:
                _read_line(values, found)
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                lacks = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise DataError(
                    f"{path}, line {number}, is none of a log of `tulip serve` ({lacks}): give a "
                    f"log (--log), or a table of `tulip score` that ends in .parquet"
                ) from error
    if strange and strange == number:  # a picture has few lines
        seen = looks_like(path)
        what = "it is no JSON" if seen is None else f"it is {seen}"
        raise DataError(f"{path} is no log of `tulip serve`: {what}")


def _read_line(values: Any, found: dict[str, Stream]) -> None:
    """One line of a log; whatever is no such line raises something."""
    version = values["model"]
    if not isinstance(version, str):
        raise TypeError("the model has no name")
    if "calibration" in values:
        scores = torch.tensor([_score(one) for one in values["calibration"]], dtype=torch.float64)
        found.setdefault(version, Stream(version, None)).calibration = scores
        return
    promise = next(iter(values["promise"].items())) if values["promise"] else None
    if promise is not None:
        if promise[0] not in _PROMISES:
            raise ValueError(f"the promise {promise[0]!r} is not known")
        promise = promise[0], float(promise[1])
    when = None if values["time"] is None else float(values["time"])
    score, accepted = _score(values["score"]), _decision(values["accepted"])
    found.setdefault(version, Stream(version, None)).add(score, accepted, promise, when)


def _decision(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"accepted is {value!r}")
    return value


def _score(value: Any) -> float:
    """A logged score; JSON has no +inf, so that null stands for it."""
    score = math.inf if value is None else float(value)
    if math.isnan(score):
        raise ValueError("a score is NaN")
    return score


def _read_table(path: Path | str, found: dict[str, Stream], in_order: bool) -> None:
    import pyarrow as pa

    from tulip_ood.data.parts import written_manifest
    from tulip_ood.data.summary import table_files
    from tulip_ood.data.tables import pieces

    detector = (written_manifest(path) or {}).get("detector")
    if not isinstance(detector, str):
        raise DataError(f"{path} is no table of `tulip score`: it says nothing of its detector")
    version = detector[:12]
    stream = found.setdefault(version, Stream(version, None))
    rows: list[tuple[float, bool]] = []
    try:
        for name in table_files(path):
            for batch in pieces(name, _COLUMNS):
                judged = [one for one in map(_read_row, batch.to_pylist()) if one is not None]
                stream.unreadable += len(batch) - len(judged)
                rows += judged
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        lacks = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is no table of `tulip score`: {lacks}") from error
    if in_order:
        for one in rows:
            stream.add(*one)
        return
    # Rows stand in the order of folders, class by class, which is no order in time: the test asks
    # whether they could be a random sample, so it takes them in random order.
    stream.mixed = stream.mixed or bool(rows)
    for row in random.permutation(len(rows), seed=0, name="monitor/rows").tolist():
        stream.add(*rows[row])


def _read_row(row: dict[str, Any]) -> tuple[float, bool] | None:
    """A row of a table, None if its input could not be read; what is no such row raises."""
    from tulip_ood.data.scores import NOT_FINITE

    score, accepted, error = (row[name] for name in _COLUMNS)
    if score is None and error != NOT_FINITE:
        return None
    return _score(score), _decision(accepted)
