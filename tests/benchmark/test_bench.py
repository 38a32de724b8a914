"""`bench`: the same scores as detectors fitted one by one; nothing is done twice or lost."""

import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tulip_ood
from tulip_ood.benchmark import bench_folder, pieces
from tulip_ood.benchmark.bench import bench
from tulip_ood.benchmark.bench_loading import load_benchmark
from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.benchmark.entries import Entry, parse_entries
from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.benchmark.tidy import tidy
from tulip_ood.benchmark.tidy_file import write_parquet
from tulip_ood.data.root import Root
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.network import Network
from tulip_ood.numerics import metrics

from . import bench_root

METHODS = "msp,knn,scale,tulip[recipe=balanced],msp&knn"


@pytest.fixture(scope="module")
def networks() -> list[BenchNetwork]:
    return [bench_root.make_network(seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_root.make_root(tmp_path_factory.mktemp("root") / "data")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_BATCH", 16)
    monkeypatch.setattr(pieces, "_MOST_ROWS", 32)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts forward passes of networks."""
    count = [0]
    plain = Network.run

    def counted(self: Network, *arguments: Any, **more: Any) -> Any:
        count[0] += 1
        return plain(self, *arguments, **more)

    monkeypatch.setattr(Network, "run", counted)
    return count


def run(root: Path, networks: list[BenchNetwork], out: Path, **more: Any) -> Benchmark:
    more.setdefault("methods", METHODS)
    return bench("cifar10", Root.open(root), networks, out=out, **more)


def as_bytes(found: Benchmark, place: Path) -> bytes:
    write_parquet(tidy(found), place, {})
    return place.read_bytes()


@pytest.fixture(scope="module")
def whole(
    root: Path, networks: list[BenchNetwork], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Benchmark, Path]:
    """One run without interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_BATCH", 16)
        patch.setattr(pieces, "_MOST_ROWS", 32)
        out = tmp_path_factory.mktemp("whole") / "out"
        return run(root, networks, out, tracks=("val", "train")), out


def test_every_method_on_every_network_and_track(whole: tuple[Benchmark, Path]) -> None:
    found, _ = whole
    assert found.skipped == {}
    val = {run.method for run in found.of("val")}
    assert val == {"ent", *(str(entry) for entry in parse_entries(METHODS))}
    assert {run.method for run in found.of("train")} == {"ent", "knn"}
    assert len(found.runs) == 2 * (len(val) + 2)
    assert [found.sets[name].group for name in found.sets] == ["id", "near", "far", "shifted"]
    for each in found.runs:
        assert (each.n_val, each.n_train) == (120, 90 if each.track == "train" else 0) or (
            each.method == "ent"
        )
        assert set(each.result.sets) == {"cifar100", "svhn"}
        assert set(each.shifted) == {"cifar10c"}
        assert each.training_seed in (0, 1)


@pytest.mark.parametrize("method", ["knn", "scale", "tulip[recipe=balanced]"])
def test_scores_are_those_of_a_detector_fitted_alone(
    method: str, whole: tuple[Benchmark, Path], root: Path, networks: list[BenchNetwork]
) -> None:
    found, _ = whole
    network, entry = networks[1], Entry.parse(method)

    def images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        with np.load(root / f"{name}.npz") as file:
            return network.preprocess.normalise(file["x"]), torch.from_numpy(file["y"])

    detector = tulip_ood.detectors.make(entry.method, network.module)
    tune = [images("ood_val")[0]] if detector.search else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tulip_ood.TulipWarning)  # gratings are easy
        detector.fit([images("val")], tune=tune, **entry.fitting)
    mine = next(r for r in found.of("val") if r.method == method and r.training_seed == 1)
    near = detector.score(images("near")[0])
    inside = detector.score(images("test")[0])
    torch.testing.assert_close(mine.result.sets["cifar100"].scores, near, rtol=1e-9, atol=1e-9)
    assert mine.result.sets["cifar100"].auroc == pytest.approx(metrics.auroc(inside, near))
    assert detector.threshold is not None
    assert mine.result.threshold == pytest.approx(detector.threshold.value)


def test_a_second_run_makes_no_forward_pass(
    whole: tuple[Benchmark, Path],
    root: Path,
    networks: list[BenchNetwork],
    forwards: list[int],
    tmp_path: Path,
) -> None:
    found, out = whole
    again = run(root, networks, out, tracks=("val", "train"))
    assert forwards == [0]
    assert as_bytes(again, tmp_path / "a") == as_bytes(found, tmp_path / "b")
    loaded = load_benchmark(out)
    assert as_bytes(loaded, tmp_path / "c") == as_bytes(found, tmp_path / "b")
    assert not list(out.glob("cells/*.safetensors"))  # detectors go when all is scored


def test_a_method_that_comes_later_uses_the_passes_that_are_there(
    root: Path, networks: list[BenchNetwork], forwards: list[int], tmp_path: Path
) -> None:
    run(root, networks[:1], tmp_path / "out", methods="ent")
    before, forwards[0] = forwards[0], 0
    run(root, networks[:1], tmp_path / "out", methods="msp")
    assert 0 < forwards[0] < before  # validation data alone
    forwards[0] = 0
    run(root, networks[:1], tmp_path / "none", methods="msp", cache_limit=0)
    assert forwards[0] >= before


class Interrupted(BaseException):
    """Like a kill: nothing may catch it."""


@pytest.mark.parametrize("moment", range(10))
def test_interrupted_at_any_moment_and_resumed(
    moment: int,
    whole: tuple[Benchmark, Path],
    root: Path,
    networks: list[BenchNetwork],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end is the same, whether the moment is in a pass or in the writing of a file."""
    draw, steps, out = random.Random(moment), [0], tmp_path / "out"

    def breaking(plain: Callable[..., Any], at: list[int]) -> Callable[..., Any]:
        def step(*arguments: Any, **more: Any) -> Any:
            steps[0] += 1
            if steps[0] in at:
                raise Interrupted
            return plain(*arguments, **more)

        return step

    at = sorted(draw.sample(range(1, 150), 2))
    with monkeypatch.context() as patch:
        patch.setattr(Network, "run", breaking(Network.run, at))
        patch.setattr(bench_folder, "appear", breaking(bench_folder.appear, at))
        patch.setattr(bench_folder, "save_tensors", breaking(bench_folder.save_tensors, at))
        times = 0
        while times < 10:
            try:
                found = run(root, networks, out, tracks=("val", "train"))
                break
            except Interrupted:
                times += 1
    assert 1 <= times <= 2
    assert as_bytes(found, tmp_path / "a") == as_bytes(whole[0], tmp_path / "b")


def test_two_runs_into_one_folder(
    whole: tuple[Benchmark, Path], root: Path, tmp_path: Path
) -> None:
    """Each with networks of its own, as two processes have."""
    failures: list[BaseException] = []

    def work(own: list[BenchNetwork]) -> None:
        try:
            run(root, own, tmp_path / "out", tracks=("val", "train"))
        except BaseException as error:
            failures.append(error)

    both = [[bench_root.make_network(seed) for seed in (0, 1)] for _ in range(2)]
    threads = [threading.Thread(target=work, args=(own,)) for own in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = load_benchmark(tmp_path / "out")
    assert as_bytes(found, tmp_path / "a") == as_bytes(whole[0], tmp_path / "b")


def test_one_network_at_a_time(
    whole: tuple[Benchmark, Path],
    root: Path,
    networks: list[BenchNetwork],
    tmp_path: Path,
) -> None:
    for only in (0, 1):
        found = run(root, networks, tmp_path / "out", tracks=("val", "train"), only=only)
    assert as_bytes(found, tmp_path / "a") == as_bytes(whole[0], tmp_path / "b")


def test_a_damaged_piece_is_made_again(
    whole: tuple[Benchmark, Path], root: Path, networks: list[BenchNetwork], tmp_path: Path
) -> None:
    found = run(root, networks[:1], tmp_path / "out", methods="msp")
    piece = next((tmp_path / "out").glob("scores/*/svhn/*.safetensors"))
    piece.write_bytes(piece.read_bytes()[:40])
    next((tmp_path / "out").glob("passes/*")).write_bytes(b"nothing")
    again = run(root, networks[:1], tmp_path / "out", methods="msp")
    assert as_bytes(again, tmp_path / "a") == as_bytes(found, tmp_path / "b")


def test_a_limit_draws_the_same_subset_for_all(
    root: Path, networks: list[BenchNetwork], tmp_path: Path
) -> None:
    found = run(root, networks, tmp_path / "out", methods="msp", limit=30)
    assert (found.limit, found.sets["svhn"].n, len(found.runs[0].result.id_scores)) == (30, 30, 30)
    with pytest.raises(DataError, match=r"another benchmark \(limit differ\)"):
        run(root, networks, tmp_path / "out", methods="msp")


def test_what_cannot_be_run_is_said_once_and_the_rest_goes_on(
    root: Path, networks: list[BenchNetwork], forwards: list[int], tmp_path: Path
) -> None:
    found = run(root, networks[:1], tmp_path / "out", methods="mcd,ensemble,msp")
    assert {each.method for each in found.runs} == {"ent", "msp"}
    assert set(found.skipped) == {"mcd (val)", "ensemble (val)"}
    assert "dropout" in found.skipped["mcd (val)"]
    forwards[0] = 0
    assert run(root, networks[:1], tmp_path / "out", methods="mcd,ensemble,msp").skipped
    assert forwards == [0]


def test_an_ensemble_of_the_given_networks(
    root: Path, networks: list[BenchNetwork], tmp_path: Path
) -> None:
    found = run(root, networks, tmp_path / "out", methods="ensemble")
    one, two = (r.result.id_scores for r in found.runs if r.method == "ensemble")
    torch.testing.assert_close(one, two)


def test_without_ood_validation_images(networks: list[BenchNetwork], tmp_path: Path) -> None:
    place = bench_root.make_root(tmp_path / "data", ood_val=False)
    found = run(place, networks[:1], tmp_path / "out", methods="msp,scale,tulip[recipe=balanced]")
    assert list(found.skipped) == ["scale (val)"]
    assert "--tune pseudo" in found.skipped["scale (val)"]
    found = run(place, networks[:1], tmp_path / "out", methods="scale[tune=none]")
    assert "scale[tune=none]" in {each.method for each in found.runs}


def test_images_that_cannot_be_read_are_left_out_and_counted(
    root: Path, networks: list[BenchNetwork], tmp_path: Path
) -> None:
    data = bench_root.make_root(tmp_path / "data")
    listed = tmp_path / "listed"
    with np.load(data / "far.npz") as file:
        for i, pixels in enumerate(file["x"]):
            place = listed / "images_classic" / "svhn" / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    lists = listed / "benchmark_imglist" / "cifar10"
    lists.mkdir(parents=True)
    (lists / "test_svhn.txt").write_text("".join(f"svhn/{i}.png -1\n" for i in range(40)))
    for name in ("val", "test", "near"):
        (listed / f"{name}.npz").write_bytes((data / f"{name}.npz").read_bytes())
    (listed / "sets.json").write_text(
        '{"cifar10": {"val": {"file": "val.npz", "list": "none"},'
        ' "test": {"file": "test.npz", "list": "none"}}}'
    )
    whole = run(listed, networks[:1], tmp_path / "a", methods="msp")
    (listed / "images_classic" / "svhn" / "3.png").write_bytes(b"no image")
    less = run(listed, networks[:1], tmp_path / "b", methods="msp")
    assert (whole.sets["svhn"].n, less.sets["svhn"].n) == (40, 39)
    assert "1 image left out because of damage" in (less.sets["svhn"].stand_in or "")
    kept = [i for i in range(40) if i != 3]
    for one, two in zip(whole.runs, less.runs, strict=True):
        torch.testing.assert_close(
            one.result.sets["svhn"].scores[kept], two.result.sets["svhn"].scores
        )


def test_wrong_use(root: Path, networks: list[BenchNetwork], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown method"):
        run(root, networks, tmp_path / "out", methods="energy")
    with pytest.raises(InputError, match="same: give each one once"):
        run(root, [networks[0], networks[0]], tmp_path / "out")
    with pytest.raises(InputError, match="no network"):
        run(root, [], tmp_path / "out")
    with pytest.raises(InputError, match="tracks must be"):
        run(root, networks, tmp_path / "out", tracks=("test",))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(DataError, match="not empty and no benchmark"):
        run(root, networks, tmp_path / "full", methods="msp")
    with pytest.raises(InputError, match=r"settings of msp\[colour=red\]"):
        run(root, networks[:1], tmp_path / "out", methods="msp[colour=red]")
    for word, reason in (
        ("tulip[recipe", "is no method"),
        ("msp[recipe=paper]", "only TULiP"),
        ("knn[k]", "is no setting"),
        ("knn[tune=mnist]", "tune must be"),
        (" , ", "no methods were named"),
    ):
        with pytest.raises(InputError, match=reason):
            parse_entries(word)


def test_other_images_are_refused_in_the_same_folder(
    networks: list[BenchNetwork], tmp_path: Path
) -> None:
    place = bench_root.make_root(tmp_path / "data")
    run(place, networks[:1], tmp_path / "out", methods="msp")
    np.savez(place / "far.npz", x=np.zeros((40, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="other images of svhn"):
        run(place, networks[:1], tmp_path / "out", methods="msp")


def test_the_norm_stands_in_for_the_drift(networks: list[BenchNetwork]) -> None:
    detector = Entry.parse("tulip-norm").make(
        Network(networks[0].module, tulip_ood.Tulip(networks[0].module).task), {}
    )
    x = torch.randn(40, 3, 32, 32)
    with pytest.warns(tulip_ood.TulipWarning):
        detector.fit([(torch.randn(90, 3, 32, 32), torch.arange(90) % 10)], recipe="balanced")  # type: ignore[call-arg]
    seen: list[Any] = []
    detector.engine.over(
        x, detector._needs(), lambda p: (p.base[:, 0], seen.append(p) or p.base[:, 0])
    )
    assert seen[0].drift is None  # one pass less
    assert detector._needs().passes == 11


def test_noise_on_the_inputs_does_not_depend_on_the_batch(networks: list[BenchNetwork]) -> None:
    detector = Entry.parse("noise-input[sigma=0.3,n_samples=4]").make(
        Network(networks[0].module, tulip_ood.Tulip(networks[0].module).task), {}
    )
    x = torch.randn(20, 3, 32, 32)
    detector.fit([(torch.randn(110, 3, 32, 32), torch.arange(110) % 10)])
    torch.testing.assert_close(detector.score(x)[7:9], detector.score(x[7:9]))
    config, _ = detector.configuration()
    assert (config["sigma"], config["n_samples"]) == (0.3, 4)
    for wrong in ("sigma=0", "score=bound", "n_samples=0"):
        with pytest.raises(InputError, match="noise-input needs"):
            Entry.parse(f"noise-input[{wrong}]").make(detector.network, {})
