"""The demo, the real thing: run by the command and by Python, with the same numbers."""

import errno
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from tulip_ood.benchmark.verdict import judge
from tulip_ood.cli.app import app as whole
from tulip_ood.cli.demo import demo
from tulip_ood.cli.failing import UsageError
from tulip_ood.demo import METHODS, DemoResult, run_demo
from tulip_ood.demo.data import load_data
from tulip_ood.errors import DataError
from tulip_ood.numerics import metrics
from tulip_ood.serving.service import Service

app = typer.Typer()
app.command()(demo)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: Any) -> tuple[Result, Path]:
    """What the command shows, and where it writes."""
    folder = tmp_path_factory.mktemp("a folder with spaces") / "out"
    given = ["--out", str(folder), "--json", str(folder / "more" / "numbers.json")]
    return CliRunner().invoke(app, given), folder


@pytest.fixture(scope="module")
def result() -> DemoResult:
    """A second run, in Python."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    made = run_demo(0)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    return made


def test_command(shown: tuple[Result, Path]) -> None:
    ran, folder = shown
    assert ran.exit_code == 0, ran.output
    assert sorted(path.name for path in folder.iterdir()) == [
        *("detector.safetensors", "images", "more", "network.safetensors"),
        *("report.html", "results.json"),
    ]
    results = (folder / "results.json").read_bytes()
    assert (folder / "more" / "numbers.json").read_bytes() == results
    assert str(folder / "report.html") in ran.output
    comparison = json.loads(results)["comparison"]
    for name, numbers in comparison["methods"].items():
        row = next(line for line in ran.output.splitlines() if line.startswith(f"{name} "))
        expected = []
        for each in numbers["sets"].values():
            expected += [f"{100 * each['auroc']:.1f}", f"{100 * each['id_flagged_at_95_ood']:.1f}"]
        assert row.split()[1:] == [*expected, f"{1000 * numbers['aurc']:.2f}"]


def test_the_commands_that_it_names_work(
    shown: tuple[Result, Path], result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`score` gives the demo's own scores to its pictures, `serve` can be asked about them."""
    ran, folder = shown
    named = [shlex.split(line) for line in ran.output.splitlines() if " --model " in line]
    score, serve = (
        next(words[words.index(what) :] for words in named if what in words)
        for what in ("score", "serve")
    )
    scored = CliRunner().invoke(whole, score)
    assert scored.exit_code == 0, scored.output
    rows = pq.read_table(folder / "scores.parquet").to_pylist()
    assert [row["label"] for row in rows] == [i // 5 for i in range(40)] + [None] * 60
    x, y = result.data.test
    mine = torch.cat([x[y == label][:5] for label in range(8)])
    mine = torch.cat([mine, *(result.data.ood[k][:20] for k in sorted(result.data.ood))])
    pictures = (mine * 255).round() / 255
    scores = torch.tensor([row["score"] for row in rows], dtype=torch.float64)
    allowed = 1e-5 * result.tulip.calibration.spread
    assert (scores - result.tulip.score(pictures)).abs().max() <= allowed

    asked = []

    def answer(app: Service, **more: object) -> None:
        asked.append(app.scoring)
        app.close()

    monkeypatch.setattr("tulip_ood.serving.running.serve", answer)
    served = CliRunner().invoke(whole, serve)
    assert served.exit_code == 0, served.output
    assert len(asked) == 1


def test_places_are_checked_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*given: object, **more: object) -> None:
        raise AssertionError("it trains although the result cannot be written")

    monkeypatch.setattr("tulip_ood.demo.run.run_demo", work)
    (tmp_path / "file").touch()
    (tmp_path / "full" / "report.html").mkdir(parents=True)
    for place, words in (
        (["--out", tmp_path / "file"], "is no folder"),
        (["--out", tmp_path / "file" / "below"], "cannot be made"),
        (["--out", tmp_path / "full"], "is a folder"),
        (["--out", tmp_path, "--json", tmp_path / "file" / "x.json"], "--json: .* is no folder"),
        (["--out", tmp_path, "--json", tmp_path / "full"], "is a folder"),
    ):
        ran = CliRunner().invoke(app, list(map(str, place)))
        assert isinstance(ran.exception, UsageError), place
        assert re.search(words, str(ran.exception))

    def refuse(**given: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    ran = CliRunner().invoke(app, ["--out", str(tmp_path / "new")])
    assert "may not be written to: Permission denied" in str(ran.exception)
    assert not (tmp_path / "new").exists()


def test_running_twice_gives_the_same_numbers(
    shown: tuple[Result, Path], result: DemoResult
) -> None:
    first = json.loads((shown[1] / "results.json").read_text("utf-8"))
    assert first == json.loads(json.dumps(result.to_dict()))


def test_json_equals_recomputed_metrics(shown: tuple[Result, Path], result: DemoResult) -> None:
    found = json.loads((shown[1] / "results.json").read_text("utf-8"))["comparison"]["methods"]
    assert list(found) == list(METHODS)
    x, y = result.data.test
    with torch.no_grad():
        wrong = (result.model(x).argmax(1) != y).to(torch.float64)
    for name, detector in result.detectors.items():
        inside = detector.score(x)
        assert found[name]["accuracy"] == pytest.approx(1 - float(wrong.mean()))
        assert found[name]["aurc"] == metrics.aurc(inside, wrong)
        for each, inputs in result.data.ood.items():
            outside, numbers = detector.score(inputs), found[name]["sets"][each]
            assert numbers["auroc"] == metrics.auroc(inside, outside)
            flagged = metrics.id_flagged_at_95_ood(inside, outside)
            assert numbers["id_flagged_at_95_ood"] == flagged


def test_the_network_is_a_realistic_one(result: DemoResult) -> None:
    ours = result.comparison.methods["tulip"]
    assert 0.9 < ours.accuracy < 0.99  # decent, with errors to find
    # One calibration set of 300 and 693 test inputs: far outside this would be a broken promise.
    assert 0.01 < ours.false_alarms < 0.11
    assert ours.ece <= result.comparison.methods["ent"].ece + 0.01


def test_noise_averaging_uses_tulips_noise(result: DemoResult) -> None:
    epsilon = result.tulip.fitted_state()[0]["setting"]["epsilon"]
    assert result.detectors["noise"].epsilon == epsilon


def test_verdict_belongs_to_the_numbers(result: DemoResult) -> None:
    assert result.verdict == judge(result.comparison)


def test_report_shows_digits(shown: tuple[Result, Path], result: DemoResult) -> None:
    page = (shown[1] / "report.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") == 24
    assert f"<h1>{result.verdict.headline}</h1>" in page
    assert len(page) < 400_000
    assert not list(shown[1].glob("*.partial"))


def test_splits_share_nothing() -> None:
    data = load_data(3)
    parts = {"train": data.train[0], "validation": data.validation[0], "test": data.test[0]}
    assert len(data.validation[0]) >= 400  # halves, not folds
    rows = {name: {row.numpy().tobytes() for row in images} for name, images in parts.items()}
    assert not rows["train"] & rows["validation"]
    assert not rows["train"] & rows["test"]
    assert not rows["validation"] & rows["test"]
    assert int(max(labels.max() for labels in (data.train[1], data.test[1]))) == 7
    for images in (*parts.values(), *data.ood.values()):
        assert images.shape[1:] == (1, 8, 8)
        assert images.dtype == torch.float32
        assert float(images.min()) >= 0.0
        assert float(images.max()) <= 1.0


def test_another_seed_is_another_split() -> None:
    first, second = load_data(0), load_data(1)
    assert not torch.equal(first.train[0], second.train[0])
    assert not torch.equal(first.ood["noise"], second.ood["noise"])
    assert torch.equal(first.ood["photographs"], load_data(0).ood["photographs"])


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"pip install 'tulip-ood\[demo\]'"):
        load_data()
