"""A log of scores, one JSON object a line, that `tulip monitor` reads. No image is in it.

The first line of every detector holds its calibration scores, so that a log can be judged without
the detector's file.
"""

import json
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

from tulip_ood.errors import DataError
from tulip_ood.serving.judging import Judge, Judged
from tulip_ood.wording import json_values

__all__ = ["ScoreLog"]


class ScoreLog:
    """Appends to a file; whole lines in one write, so that several servers may share it.

    Args:
        path: The file; it is made, or appended to.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = ScoreLog(f"{folder}/scores.jsonl")
        ...     log.write([{"score": 0.5}, {"score": float("inf")}])
        ...     log.close()
        ...     print(pathlib.Path(folder, "scores.jsonl").read_text().strip())
        {"score": 0.5}
        {"score": null}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o666)
        except OSError as error:
            raise DataError(f"the log {path} cannot be written: {error.strerror}") from error
        self._lock = threading.Lock()
        self._torn = False  # whether the last line is only there in part

    def begin(self, judge: Judge, role: str) -> None:
        """Say which detector the lines to come are from, and what it was calibrated on."""
        scores = judge.detector.calibration.scores.tolist()
        line = {"event": "detector", "time": time.time(), "model": judge.version}
        line |= {"detector": role, "method": judge.detector.name}
        try:
            self.write([line | {"calibration": scores}])
        except OSError as error:
            raise DataError(f"the log cannot be written: {error.strerror}") from error

    def judged(self, judge: Judge, role: str, judged: Judged, **more: Any) -> dict[str, Any]:
        """The line of one image."""
        threshold = judge.detector.threshold
        return {
            "time": time.time(),
            "model": judge.version,
            "detector": role,
            "label": judged.answer["label"],
            "score": judged.score,
            "p_value": judged.p_value,
            "accepted": judged.accepted,
            "threshold": None if threshold is None else threshold.value,
            "promise": None if threshold is None else {threshold.kind: threshold.target},
            **more,
        }

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        """Append lines."""
        text = "".join(json.dumps(json_values(line), allow_nan=False) + "\n" for line in lines)
        with self._lock:
            data = (b"\n" if self._torn else b"") + text.encode()
            whole = len(data)
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            finally:
                self._torn = 0 < len(data) < whole or (self._torn and bool(data))

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)
