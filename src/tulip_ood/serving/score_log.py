"""A log of scores, one JSON object a line, that `tulip monitor` reads. No image is in it.

The first line of every detector holds its calibration scores, so that a log can be judged without
the detector's file. A log that was moved or cut short by others (logrotate, with or without
`copytruncate`) is begun anew under its name, with such lines.
"""

import json
import os
import stat
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
        self._path = os.path.abspath(path)
        try:
            if os.path.isfile(path) and not _may_be_ours(self._path):
                raise DataError(f"{path} is there already, and is no log: name another file")
            self._file = self._open()
        except DataError:
            raise
        except OSError as error:
            raise DataError(f"the log {path} cannot be written: {error.strerror}") from error
        self._lock = threading.Lock()
        self._begun: list[tuple[Judge, str]] = []
        self._size = 0  # of the file after the last line
        self._torn = False  # whether the last line is only there in part

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, 0o666)

    def begin(self, judge: Judge, role: str) -> None:
        """Say which detector the lines to come are from, and what it was calibrated on."""
        try:
            self.write([_first_line(judge, role)])
        except OSError as error:
            raise DataError(f"the log cannot be written: {error.strerror}") from error
        self._begun.append((judge, role))

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
        """Append lines; where the file was moved, to a new one of its name.

        If that cannot be made, they go where the file now is, and the error is raised.
        """
        text = _text(lines)
        with self._lock:
            trouble: OSError | None = None
            try:
                anew = self._reopen()
            except OSError as error:
                anew, trouble = False, error
            if anew:
                text = _text(_first_line(*one) for one in self._begun) + text
            self._append(text.encode())
            if trouble is not None:
                raise trouble

    def _reopen(self) -> bool:
        """Whether the file begins anew: another one has its name, or it was cut short."""
        now = os.fstat(self._file)
        if not stat.S_ISREG(now.st_mode):  # a terminal, a pipe
            return False
        try:
            if os.path.samestat(os.stat(self._path), now):
                return now.st_size < self._size
        except FileNotFoundError:
            pass
        fresh = self._open()
        os.close(self._file)
        self._file, self._torn = fresh, False
        return True

    def _append(self, data: bytes) -> None:
        data = (b"\n" if self._torn else b"") + data
        whole = len(data)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        finally:
            self._torn = 0 < len(data) < whole or (self._torn and bool(data))
            self._size = os.fstat(self._file).st_size

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)


def _first_line(judge: Judge, role: str) -> dict[str, Any]:
    line = {"event": "detector", "time": time.time(), "model": judge.version}
    line |= {"detector": role, "method": judge.detector.name}
    return line | {"calibration": judge.detector.calibration.scores.tolist()}


def _may_be_ours(path: str) -> bool:
    """Whether nothing stands there yet, or lines of JSON do."""
    with open(path, "rb") as file:
        return file.read(1) in (b"", b"{")


def _text(lines: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(json_values(line), allow_nan=False) + "\n" for line in lines)
