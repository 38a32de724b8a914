"""The log of scores, whatever others do to its file while a server writes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tulip_ood.errors import DataError
from tulip_ood.serving.judging import Judge, Judged
from tulip_ood.serving.monitoring import read_streams
from tulip_ood.serving.score_log import ScoreLog

ODD = Judged(0.5, 0.5, True, {"label": 0})


@pytest.fixture
def judge(detector: Any) -> Judge:
    return Judge(detector)


def scores(path: Path) -> list[Any]:
    """The first line must say which detector it was; then the scores."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("event") for line in lines] == ["detector", *[None] * (len(lines) - 1)]
    assert len(lines[0]["calibration"]) > 20
    return [line["score"] for line in lines[1:]]


def moved(log: Path, old: Path) -> None:
    log.rename(old)


def moved_and_made(log: Path, old: Path) -> None:
    log.rename(old)
    log.touch()


def copied_and_cut(log: Path, old: Path) -> None:
    shutil.copy(log, old)
    os.truncate(log, 0)


@pytest.mark.parametrize("rotate", [moved, moved_and_made, copied_and_cut])
def test_a_log_that_is_rotated_begins_anew(
    judge: Judge, tmp_path: Path, rotate: Callable[[Path, Path], None]
) -> None:
    path, old = tmp_path / "scores.jsonl", tmp_path / "scores.jsonl.1"
    log = ScoreLog(path)
    log.begin(judge, "answering")
    log.write([{"score": 1.0}])
    rotate(path, old)
    log.write([{"score": 2.0}, {"score": 3.0}])
    log.write([{"score": 4.0}])
    log.close()
    assert scores(old) == [1.0]
    assert scores(path) == [2.0, 3.0, 4.0]


def test_two_servers_share_a_log_that_is_rotated(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    logs = [ScoreLog(path), ScoreLog(path)]
    for log in logs:
        log.begin(judge, "answering")
        log.write([log.judged(judge, "answering", ODD)])
    path.rename(tmp_path / "old")
    for _ in range(2):
        for log in logs:
            log.write([log.judged(judge, "answering", ODD)])
    for log in logs:
        log.close()
    (found,) = read_streams([str(path)])
    assert found.calibration is not None
    assert len(found.scores) == 4


def test_where_no_new_file_can_be_made_lines_stay_in_the_old(judge: Judge, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = ScoreLog(folder / "scores.jsonl")
    log.begin(judge, "answering")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        log.write([{"score": 1.0}])
    assert scores(tmp_path / "elsewhere" / "scores.jsonl") == [1.0]
    folder.mkdir()
    log.write([{"score": 2.0}])
    log.close()
    assert scores(folder / "scores.jsonl") == [2.0]


def test_a_pipe_is_no_file_to_look_for(judge: Judge) -> None:
    read, write = os.pipe()
    log = ScoreLog(f"/dev/fd/{write}")
    os.close(write)  # the name is gone, the pipe is not
    log.write([{"score": 1.0}])
    log.close()
    with os.fdopen(read) as lines:
        assert lines.read() == '{"score": 1.0}\n'


def test_a_program_is_no_log_to_append_to(tmp_path: Path) -> None:
    program = tmp_path / "net.py"
    program.write_text("import torch\n")
    with pytest.raises(DataError, match="is there already, and is no log: name another file"):
        ScoreLog(program)
    assert program.read_text() == "import torch\n"
