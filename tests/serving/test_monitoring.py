"""Logs of a server and tables of scores: what is read from them, and what is concluded."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tulip_ood.errors import DataError, InputError
from tulip_ood.serving import application
from tulip_ood.serving.monitoring import Stream, read_streams, watch

from .conftest import Client, encoded, form, picture


def served(detector: Any, inputs: torch.Tensor, log: Path) -> None:
    service = application(detector, log=log)
    for part in inputs.split(50):
        files = [(str(i), encoded(picture(x))) for i, x in enumerate(part)]
        assert Client(service).score(*form(*files)).status == 200
    service.close()


def test_from_a_server_to_a_verdict(detector: Any, images: Any, tmp_path: Path) -> None:
    detector.set_threshold(false_alarm=0.05)
    log = tmp_path / "scores.jsonl"
    served(detector, images.test[0][:300], log)
    (stream,) = read_streams([log])
    quiet = watch(stream)
    assert (quiet.inputs, quiet.drifted, quiet.noticed) == (300, False, None)
    assert sum(quiet.buckets) == 300
    (rate,) = quiet.refusals
    assert rate.promise == ("false_alarm", 0.05)
    assert rate.low <= 0.05 <= rate.high
    detector.set_threshold(false_alarm=0.2)
    served(detector, images.ood[:150], log)
    (stream,) = read_streams([log])
    found = watch(stream)
    assert found.drifted
    assert found.noticed is not None
    assert 300 < found.noticed < 450
    assert found.noticed_at == stream.times[found.noticed]
    assert [one.promise for one in found.refusals] == [("false_alarm", 0.05), ("false_alarm", 0.2)]
    assert found.refusals[1].low > 0.2
    assert json.loads(json.dumps(found.to_dict()))["refusals"][1]["refused"] > 30
    detector.set_threshold(false_alarm=0.05)


def test_versions_are_told_apart(detector: Any, rival: Any, images: Any, tmp_path: Path) -> None:
    log = tmp_path / "scores.jsonl"
    served(detector, images.test[0][:30], log)
    served(rival, images.ood[:60], log)
    streams = read_streams([log])
    assert [len(stream.scores) for stream in streams] == [30, 60]
    assert len({stream.version for stream in streams}) == 2


def test_an_input_without_a_score_is_the_oddest(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = {"event": "detector", "model": "a", "calibration": [*range(50), None]}
    rows = [
        {"model": "a", "score": score, "accepted": False, "promise": None, "time": i}
        for i, score in enumerate([None] * 12)
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in (first, *rows)))
    (stream,) = read_streams([log])
    assert stream.scores == [math.inf] * 12
    assert stream.calibration is not None
    assert float(stream.calibration[-1]) == math.inf
    assert watch(stream).drifted


def test_damaged_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    good = '{"model": "a", "score": 1, "accepted": true, "promise": null, "time": 0}\n'
    log.write_text(
        good + '{"model": "a", "sco\n' + good + '{"mod'
    )  # a full disk; now being written
    (stream,) = read_streams([log])
    assert len(stream.scores) == 2
    found = watch(stream)
    assert (found.drifted, found.buckets) == (None, ())  # nothing is known of the calibration
    log.write_text("no JSON\n" * 20)
    with pytest.raises(DataError, match="no JSON"):
        read_streams([log])
    log.write_text('{"model": "a", "score": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        read_streams([log])
    table = tmp_path / "x.parquet"
    table.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="no table"):
        read_streams([table])
    with pytest.raises(InputError, match="alpha"):
        watch(Stream("a", None), alpha=0.0)


@pytest.mark.parametrize(
    "other",
    [
        {"accepted": "yes"},
        {"accepted": None},
        {"score": "high"},
        {"score": [1]},
        {"score": 10**400},
        {"time": "now"},
        {"model": None},
        {"promise": {"else": 0.1}},
        {"promise": {"false_alarm": "few"}},
        {"calibration": ["low"]},
        {"calibration": [[1.0]]},
        {"calibration": [float("nan")]},
    ],
)
def test_lines_of_something_else_are_named(tmp_path: Path, other: dict[str, Any]) -> None:
    line = {"model": "a", "score": 1, "accepted": True, "promise": None, "time": 0}
    log = tmp_path / "log"
    log.write_text(f"{json.dumps(line)}\n{json.dumps(line | other)}\n")
    with pytest.raises(DataError, match="line 2, is none of a log"):
        read_streams([log])


def test_a_long_log_may_have_more_damage(tmp_path: Path) -> None:
    """Eleven lines, one a month, that a full disk cut short."""
    good = '{"model": "a", "score": 1, "accepted": true, "promise": null, "time": 0}\n'
    log = tmp_path / "log"
    log.write_text((good * 200 + '{"mod\n') * 11)
    (stream,) = read_streams([log])
    assert len(stream.scores) == 2200


def test_a_table_in_parts(tmp_path: Path) -> None:
    import pyarrow as pa

    from tulip_ood.data.remote_parts import parts_at

    kinds = {"row": pa.int64(), "score": pa.float64(), "accepted": pa.bool_(), "error": pa.string()}
    schema = pa.schema(list(kinds.items()))
    for place in (tmp_path / "here", f"file://{tmp_path}/there"):
        parts = parts_at(place, schema, {"detector": "0123456789abcdef"}, 10, 4, True)
        parts.prepare()
        for index in range(len(parts)):
            rows = [{"row": i, "score": i / 10, "accepted": i < 8} for i in parts.range_of(index)]
            parts.write(index, rows)
        with pytest.raises(DataError, match=r"no table|no log"):  # it is not complete yet
            read_streams([place])
        parts.merge()
        (stream,) = read_streams([place])
        assert (stream.version, len(stream.scores)) == ("0123456789ab", 10)
        assert sum(stream.scores) == pytest.approx(4.5)


def test_rows_of_a_table_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Ordinary inputs, then other ones: noticed where they begin, if the order is time."""
    import pyarrow as pa

    from tulip_ood.data.remote_parts import parts_at

    kinds = {"row": pa.int64(), "score": pa.float64(), "accepted": pa.bool_(), "error": pa.string()}
    parts = parts_at(
        tmp_path / "t", pa.schema(list(kinds.items())), {"detector": "0" * 64}, 600, 100, True
    )
    parts.prepare()
    scores = [*torch.rand(400, generator=torch.Generator().manual_seed(0)).tolist(), *[2.0] * 200]
    for index in range(len(parts)):
        rows = parts.range_of(index)
        parts.write(index, [{"row": i, "score": scores[i], "accepted": i < 400} for i in rows])
    parts.merge()

    def seen(in_order: bool) -> Any:
        (stream,) = read_streams([tmp_path / "t"], in_order=in_order)
        stream.calibration = torch.linspace(0, 1, 500)
        return stream, watch(stream)

    stream, found = seen(in_order=True)
    assert stream.scores == scores
    assert not found.mixed
    assert 400 <= found.noticed < 450
    stream, found = seen(in_order=False)
    assert stream.scores != scores
    assert sorted(stream.scores) == sorted(scores)
    assert found.mixed
    assert found.noticed < 400
    assert found.to_dict()["mixed"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(99), r"it is an image \(PNG\)"),
        (b"hello\n", "it is text"),
        (bytes(range(200, 256)), "it is no JSON"),
    ],
)
def test_a_file_without_a_line_of_a_log(tmp_path: Path, content: bytes, what: str) -> None:
    """It was taken for an empty log, and so for no drift."""
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=f"is no log of `tulip serve`: {what}"):
        read_streams([tmp_path / "x"])
    for begun in ("", '{"event": "detector", "calib'):
        (tmp_path / "begun").write_text(begun)
        assert read_streams([tmp_path / "begun"]) == []
