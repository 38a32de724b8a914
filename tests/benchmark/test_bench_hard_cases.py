"""`bench` when data, networks or methods change or fail: nothing stale, nothing lost."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tulip_ood.benchmark import pieces
from tulip_ood.benchmark.bench import bench
from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.data.root import Root
from tulip_ood.detectors.odin import PerturbedLogits
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.network import Network

from . import bench_root


@pytest.fixture(scope="module")
def networks() -> list[BenchNetwork]:
    return [bench_root.make_network(seed) for seed in (0, 1)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return bench_root.make_root(tmp_path / "data")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_BATCH", 32)
    monkeypatch.setattr(pieces, "_MOST_ROWS", 32)


def run(root: Path, networks: list[BenchNetwork], **more: Any) -> Benchmark:
    more.setdefault("methods", "msp,knn")
    return bench("cifar10", Root.open(root), networks, out=root.parent / "out", **more)


def test_another_way_to_tune_takes_the_place_of_the_old(
    root: Path, networks: list[BenchNetwork]
) -> None:
    first = run(root, networks[:1])
    second = run(root, networks[:1], tune="none")
    assert [run.method for run in first.runs] == [run.method for run in second.runs]
    assert {run.method: run.tune for run in first.runs} == {
        "msp": "none",
        "ent": "none",
        "knn": "ood",
    }
    assert {run.tune for run in second.runs} == {"none"}


def test_back_to_the_first_way_to_tune(root: Path, networks: list[BenchNetwork]) -> None:
    """Its scores are all there, but a table must not show the other way's for them."""
    first, _, third = (run(root, networks[:1], tune=tune) for tune in ("ood", "none", "ood"))
    assert {run.method: run.tune for run in third.runs} == {
        run.method: run.tune for run in first.runs
    }
    one, three = (
        next(run.result.id_scores for run in found.runs if run.method == "knn")
        for found in (first, third)
    )
    assert torch.equal(one, three)
    assert not list((root.parent / "out" / "cells").glob("*.safetensors"))


def test_a_damaged_note_of_a_cell_does_not_lose_its_method(
    root: Path, networks: list[BenchNetwork]
) -> None:
    before = run(root, networks[:1])
    for note in (root.parent / "out" / "cells").glob("*.json"):
        note.write_text("{")
    after = run(root, networks[:1])
    assert [run.method for run in before.runs] == [run.method for run in after.runs]


def test_other_training_or_ood_validation_data_is_noticed(
    root: Path, networks: list[BenchNetwork]
) -> None:
    before = run(root, networks[:1], tracks=("train",))
    x, y = bench_root.gratings(90, 77, noise=80.0)
    np.savez(root / "train.npz", x=x, y=y)
    after = run(root, networks[:1], tracks=("train",))
    one, two = (
        next(run.result.id_scores for run in found.of("train") if run.method == "knn")
        for found in (before, after)
    )
    assert not torch.equal(one, two)
    assert len(after.of("train")) == 2


def test_what_was_missing_is_tried_again_when_it_is_there(
    tmp_path: Path, networks: list[BenchNetwork]
) -> None:
    root = bench_root.make_root(tmp_path / "data", ood_val=False)
    assert "knn (val)" in run(root, networks[:1]).skipped
    bench_root.make_root(tmp_path / "data")
    assert run(root, networks[:1]).skipped == {}
    assert "ensemble (val)" in run(root, networks[:1], methods="ensemble").skipped
    found = run(root, networks, methods="ensemble")
    assert found.skipped == {}
    assert sum(run.method == "ensemble" for run in found.runs) == 2


def test_a_file_that_cannot_be_read_is_not_removed(
    root: Path, networks: list[BenchNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(root, networks[:1], methods="msp")
    place = root.parent / "out"
    files = sorted(place.glob("scores/*/*/*"))

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tulip_ood.benchmark.bench_folder.safe_open", refuse)
    network = files[0].parts[-3]
    with pytest.raises(DataError, match="cannot be read"):
        BenchFolder(place).scored(network, "svhn")
    assert sorted(place.glob("scores/*/*/*")) == files


class NoStages(nn.Module):
    """Nothing that Gram could look at."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def test_one_method_does_not_end_the_train_track(root: Path, networks: list[BenchNetwork]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = BenchNetwork("plain", NoStages().eval(), networks[0].preprocess)
    found = run(root, [plain], methods="gram,knn", tracks=("val", "train"))
    assert {run.method for run in found.of("train")} == {"ent", "knn"}
    assert "gram (train)" in found.skipped


def test_a_pass_that_fails_harms_no_other_method(
    root: Path, networks: list[BenchNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PerturbedLogits.__call__
    with monkeypatch.context() as patch:

        def broken(self: PerturbedLogits, network: Network, inputs: Any) -> Any:
            if len(inputs) not in (64, 56, 20):  # not while it is fitted
                raise RuntimeError("CUDA error: an illegal memory access")
            return plain(self, network, inputs)

        patch.setattr(PerturbedLogits, "__call__", broken)
        found = run(root, networks[:1], methods="msp,odin", cache_limit=0)
        assert {run.method for run in found.runs} == {"ent", "msp"}
        assert "illegal memory access" in found.skipped["odin (val)"]
    again = run(root, networks[:1], methods="msp,odin")  # it is tried again
    assert again.skipped == {}


def test_an_ensemble_of_networks_that_are_fed_differently_is_refused(
    root: Path, networks: list[BenchNetwork]
) -> None:
    other = dataclasses.replace(networks[1].preprocess, mean=(0.1, 0.1, 0.1))
    found = run(
        root, [networks[0], dataclasses.replace(networks[1], preprocess=other)], methods="ensemble"
    )
    assert "prepare images in different ways" in found.skipped["ensemble (val)"]


def test_a_set_that_is_gone_or_damaged_is_an_error(
    root: Path, networks: list[BenchNetwork]
) -> None:
    run(root, networks[:1], methods="msp")
    sets = json.loads((root / "sets.json").read_text())
    (root / "sets.json").write_text(json.dumps({k: v for k, v in sets.items() if k != "svhn"}))
    with pytest.raises(DataError, match="svhn is in .* but not in the data any more"):
        run(root, networks[:1], methods="ebo")
    (root / "sets.json").write_text(json.dumps(sets))
    (root / "far.npz").write_bytes(b"garbage")
    with pytest.raises(DataError, match=r"far\.npz"):
        run(root, networks[:1], methods="ebo")


def test_a_full_disk_only_stops_the_keeping_of_passes(
    root: Path, networks: list[BenchNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tulip_ood.network.passes.Passes.save", full)
    with pytest.warns(UserWarning, match="passes are not kept any more"):
        found = run(root, networks[:1], methods="msp")
    assert {run.method for run in found.runs} == {"ent", "msp"}


def test_the_same_network_under_two_names_is_refused(
    root: Path, networks: list[BenchNetwork]
) -> None:
    twin = dataclasses.replace(networks[0], name="twin")
    with pytest.raises(InputError, match="are the same"):
        run(root, [networks[0], twin])


def test_tables_know_what_was_fitted_on(root: Path, networks: list[BenchNetwork]) -> None:
    found = run(root, networks[:1], methods="msp")
    assert found.fitted_on["val"].stand_in == "val of a test"
    assert found.runs[0].architecture == "Net"
