"""Scoring on Ray: the local engine's rows, whatever dies on the way."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tulip_ood import cluster
from tulip_ood.cli.app import app
from tulip_ood.errors import FileFormatError

pytestmark = [
    pytest.mark.usefixtures("ray"),
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
]


@pytest.fixture
def local(asked: dict[str, Any], tmp_path: Path) -> pa.Table:
    """What one process makes of it."""
    out = tmp_path / "local.parquet"
    arguments = ["score", asked["detector"], *asked["inputs"], "--out", str(out)]
    arguments += ["--model", asked["model"], "--part-rows", "8", "--batch-size", "4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return pq.read_table(out)


def check_equal(found: pa.Table, expected: pa.Table) -> None:
    """The same rows, the same answers; scores to 1e-5 of their range."""
    assert found["row"].to_pylist() == list(range(75))
    for name in ("path", "label", "prediction", "accepted", "top_labels", "error"):
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    ours, theirs = (np.array(t["score"].to_pylist(), dtype=float) for t in (found, expected))
    assert np.nanmax(np.abs(ours - theirs)) <= 1e-5 * np.ptp(theirs[~np.isnan(theirs)])
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.isnan(ours).sum() == 3


def test_the_rows_are_the_local_engines_although_a_worker_dies(
    asked: dict[str, Any], local: pa.Table, project: Path, tmp_path: Path
) -> None:
    """Others decode here, so that what they made goes to the next worker."""
    (project / "die-once").touch()
    steps: list[int] = []
    out = tmp_path / "x.parquet"
    found = cluster.score(**asked, out=out, actors=2, decoders=1, done=steps.append)
    assert not (project / "die-once").exists()
    assert (found.rows, found.errors, sum(steps)) == (75, 3, 75)
    check_equal(pq.read_table(out), local)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["local.parquet", "x.parquet"]


def test_what_the_local_engine_began_is_taken_up_and_left_in_parts(
    asked: dict[str, Any], local: pa.Table, project: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    arguments = ["score", asked["detector"], *asked["inputs"], "--out", str(out)]
    arguments += ["--model", asked["model"], "--part-rows", "8", "--batch-size", "4"]
    result = CliRunner().invoke(app, [*arguments, "--partitioned"])
    assert result.exit_code == 0, result.output
    out.rename(tmp_path / "scores.parts")  # as if the end had not come
    for index in (2, 5):
        (tmp_path / "scores.parts" / f"part-{index:08d}.parquet").unlink()
    again = [*arguments, "--partitioned", "--engine", "ray", "--actors", "1"]
    result = CliRunner().invoke(app, again)
    assert result.exit_code == 0, result.output
    assert "59 of 75 rows are there already" in result.stderr
    check_equal(pq.read_table(out), local)
    assert len(list(out.glob("part-*.parquet"))) == 10
    assert "finished already" in CliRunner().invoke(app, again).stdout


def test_what_workers_refuse_is_said_here(asked: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    other = asked | {"model": "tulip_cluster_net:changed"}
    with pytest.raises(FileFormatError, match="other weights"):
        cluster.score(**other, out=out, actors=1)
    assert not out.exists()
