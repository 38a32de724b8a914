"""Figures from passes: what is measured is what a detector measures, and is made once."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tests.benchmark import bench_root

from tulip_ood.benchmark.ablations import InputNoise
from tulip_ood.benchmark.paired import auroc_difference
from tulip_ood.data.root import Root
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.recipes import Setting
from tulip_ood.errors import DataError, InputError, TulipError
from tulip_ood.figures import (
    ablation,
    bound_adds,
    bound_histogram,
    enhancement,
    lambda_sweep,
    msp_shift,
    timing,
)
from tulip_ood.figures.canvas import Drawn
from tulip_ood.figures.finished import Finished
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, measure_networks, open_for, sizes
from tulip_ood.network.network import Network
from tulip_ood.numerics import metrics, scores

SPEC = "tests.benchmark.bench_root:make_one"
SEVERAL = (0.0025, EPSILON)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_root.make_root(tmp_path_factory.mktemp("figures") / "data")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("passes")


def measure(root: Path, cache: Path, **more: Any) -> MeasuredNetwork:
    given: dict[str, Any] = {"limit": 50, "n_samples": 4, "epsilons": SEVERAL, **more}
    (found,) = measure_networks(root, [SPEC], cache=cache, **given)
    return found


@pytest.fixture(scope="module")
def network(root: Path, cache: Path) -> MeasuredNetwork:
    return measure(root, cache, input_noise=True)


def plain(passes: Any) -> torch.Tensor:
    return scores.entropy(passes.base.to(torch.float64).softmax(dim=-1))


def test_every_set_is_there_with_its_role(network: MeasuredNetwork) -> None:
    assert [(each.name, each.group) for each in network.sets] == [
        ("cifar10", "val"), ("cifar10", "id"), ("cifar100", "near"), ("svhn", "far"),
    ]  # fmt: skip
    assert [len(each.passes[EPSILON]) for each in network.sets] == [120, 50, 50, 40]
    assert network.only("val").passes[EPSILON].labels is not None
    assert all(each.stand_in for each in network.of("near", "far"))
    assert network.name == "make_one"


def test_passes_are_made_once(
    root: Path, cache: Path, network: MeasuredNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    run = Network.run
    monkeypatch.setattr(
        Network, "run", lambda self, x, *more: (seen.append(len(x)), run(self, x, *more))[1]
    )
    again = measure(root, cache)
    assert max(seen) <= 4  # looking at the network: the sets go by larger batches
    for first, second in zip(network.sets, again.sets, strict=True):
        assert torch.equal(first.passes[EPSILON].noisy, second.passes[EPSILON].noisy)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")  # few inputs
def test_they_are_those_of_detectors(root: Path, network: MeasuredNetwork) -> None:
    _, opened = open_for(SPEC, Root.open(root))
    part = Root.open(root).part("cifar10", "test").limited(50)
    x = torch.cat([inputs for inputs, _ in _batches(part, opened)])
    y = network.only("id").passes[EPSILON].labels
    assert y is not None
    noise = NoiseAveraging(opened.module, n_samples=4).fit([(x, y)])
    test = network.only("id").passes[EPSILON]
    ours = scores.sample_score("ent", test.noisy.to(torch.float64))
    assert torch.allclose(noise.score(x), ours, atol=1e-5)
    assert network.input_noise is not None
    on_inputs = InputNoise(opened.module, sigma=network.input_noise.sigma, n_samples=4).fit(
        [(x, y)]
    )
    moved = test.extras[network.input_noise.key].movedim(1, 0).to(torch.float64)
    assert torch.allclose(on_inputs.score(x), scores.sample_score("ent", moved), atol=1e-5)


def _batches(part: Any, opened: Any) -> Any:
    from tulip_ood.benchmark.pieces import labelled_batches

    return labelled_batches(part, opened.preprocess)


def test_input_noise_moves_the_logits_as_far_as_weight_noise(network: MeasuredNetwork) -> None:
    val = network.only("val").passes[EPSILON]
    assert network.input_noise is not None
    noisy = val.extras[network.input_noise.key].movedim(1, 0)
    moved = (noisy - val.base).square().sum(dim=-1).mean()
    assert float(moved) == pytest.approx(float(sizes(val).trace.mean()), rel=0.4)


def test_a_root_or_network_that_does_not_fit_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 7 outputs, but cifar10 has 10 classes"):
        list(measure_networks(root, ["tests.figures.test_measured:seven"], cache=tmp_path))
    (tmp_path / "sets.json").write_text("{}")
    with pytest.raises(DataError, match="no ID set"):
        list(measure_networks(tmp_path, [SPEC], cache=tmp_path))


def seven() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 7))


def rows_of(drawn: Drawn) -> list[dict[str, Any]]:
    names = [path.name for path in drawn.files]
    assert [name.rpartition(".")[2] for name in names] == ["png", "svg", "parquet"]
    assert all(path.stat().st_size > 1000 for path in drawn.files)
    rows: list[dict[str, Any]] = pq.read_table(drawn.table).to_pylist()
    assert rows == drawn.rows
    return rows


def test_lambda_sweep(network: MeasuredNetwork, tmp_path: Path) -> None:
    drawn = lambda_sweep.draw([network], tmp_path)
    rows = [row for row in rows_of(drawn) if row["set"] == "far"]
    first = network.aurocs(lambda p: sizes(p).trace)["far"]
    assert rows[0]["lam"] == 0
    assert rows[0]["auroc"] == pytest.approx(first)
    dead = [row["inactive_id"] for row in rows]
    assert dead == sorted(dead)
    assert dead[0] == 0
    assert drawn.facts["make_one: entropy_far"] == network.aurocs(plain)["far"]


def test_bound_histogram(network: MeasuredNetwork, tmp_path: Path) -> None:
    drawn = bound_histogram.draw([network, network], tmp_path)
    rows = rows_of(drawn)
    for kind in ("balanced", "literal"):
        for group in ("id", "near", "far"):
            bins = [r for r in rows if (r["lambda"], r["group"]) == (kind, group)]
            mass = sum(r["density"] * (r["high"] - r["low"]) for r in bins)
            assert 0.9 <= mass <= 1 + 1e-9  # the rest lies beyond the edges
    val = network.only("val").passes[EPSILON]
    constants = network.constants(Setting(EPSILON))
    bound = sizes(val).bound(constants.trace_xx, constants.balanced_lam)
    assert float(bound.mean()) == pytest.approx(0, abs=1e-9 * constants.trace_xx)
    inside = sizes(network.only("id").passes[EPSILON])
    dead = (inside.bound(constants.trace_xx, constants.balanced_lam) <= 0).double().mean()
    assert drawn.facts["cifar10, balanced: id inactive"] == pytest.approx(float(dead))


def test_msp_shift(network: MeasuredNetwork, tmp_path: Path) -> None:
    rows = rows_of(msp_shift.draw([network, network], tmp_path))
    inside = [row for row in rows if row["group"] == "id"]
    base = network.only("id").passes[EPSILON].base.to(torch.float64).softmax(dim=-1).amax(dim=-1)
    counts = torch.histc(base, 25, 0, 1)
    assert [row["before"] for row in inside] == pytest.approx((counts / len(base)).tolist())
    for group in ("id", "far"):
        assert sum(row["after"] for row in rows if row["group"] == group) == pytest.approx(1)


def test_several_networks_of_one_set_share_a_panel(
    network: MeasuredNetwork, tmp_path: Path
) -> None:
    other = replace(network, name="again")
    for figure in (lambda_sweep, enhancement, ablation):
        one, two = (figure.draw(n, tmp_path) for n in ([network], [network, other]))
        assert len(two.rows) == 2 * len(one.rows)
        assert [line.replace(", mean of 2 networks", "") for line in two.lines] == list(one.lines)


def test_enhancement_begins_at_the_plain_scores(network: MeasuredNetwork, tmp_path: Path) -> None:
    rows = rows_of(enhancement.draw([network], tmp_path))
    plainly = {row["set"]: row["auroc"] for row in rows if (row["score"], row["j"]) == ("ent", 0)}
    assert plainly == pytest.approx(network.aurocs(plain))
    assert {row["score"] for row in rows} == {"msp", "ent", "gen", "ebo", "mls"}


def test_ablation_draws_every_epsilon(network: MeasuredNetwork, tmp_path: Path) -> None:
    rows = rows_of(ablation.draw([network], tmp_path))
    assert {row["epsilon"] for row in rows} == set(SEVERAL)
    assert {row["j"] for row in rows if row["kind"] == "J = 1"} == {1.0}
    far = [row for row in rows if row["set"] == "svhn"]
    assert len(far) == len(SEVERAL) * 9 * 2


def test_what_the_bound_adds_over_images(network: MeasuredNetwork, tmp_path: Path) -> None:
    drawn = bound_adds.draw(Finished(()), [network], tmp_path)
    rows = {(row["group"], row["method"]): row for row in rows_of(drawn)}
    assert {method for _, method in rows} == {
        "ent", "noise", "noise-input", "tulip[lam=0,recipe=balanced]", "tulip-norm[recipe=balanced]"
    }  # fmt: skip
    constants = network.constants(Setting(EPSILON))
    test, (far,) = network.only("id").passes[EPSILON], network.of("far")

    def tulip(passes: Any) -> torch.Tensor:
        return enhancement.score_at(constants, "ent", constants.j_star, passes)

    pairs = [(score(test), score(far.passes[EPSILON])) for score in (tulip, plain)]
    gap = auroc_difference(*pairs)
    found = rows["far", "ent"]
    assert found["difference"] == pytest.approx(metrics.auroc(*pairs[1]) - metrics.auroc(*pairs[0]))
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * gap.error)
    assert drawn.lines[-1].startswith("the drift pass")


def test_what_the_bound_adds_over_networks(network: MeasuredNetwork, tmp_path: Path) -> None:
    one = bound_adds.draw(Finished(()), [network], tmp_path)
    three = [replace(network, name=f"s{i}") for i in range(3)]
    same = bound_adds.draw(Finished(()), three, tmp_path)
    for first, second in zip(one.rows, same.rows, strict=True):
        assert second["difference"] == pytest.approx(first["difference"])
        assert second["high"] - second["low"] == pytest.approx(0)  # equal networks


def test_the_norm_of_the_logits_may_stand_for_the_drift(network: MeasuredNetwork) -> None:
    test = network.only("id").passes[EPSILON]
    norm = sizes(replace(test, drift=None)).drift
    assert torch.equal(norm, sizes(replace(test, drift=2 * test.base)).drift)


def test_timing_counts_passes(tmp_path: Path) -> None:
    x, y = torch.randn(120, 4), torch.randint(3, (120,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    found = timing.contenders(model, (x, y))
    rows = rows_of(timing.draw(timing.time_detectors(found, lambda: x, repeats=2), tmp_path))
    assert [row["passes"] for row in rows] == [1, 11, 12, 6, 12]
    assert rows[0]["times_ebo"] == 1
    assert all(row["seconds"] > 0 for row in rows)
    with pytest.raises(InputError, match="EBO"):
        timing.time_detectors({}, lambda: x)


def test_without_matplotlib_it_is_said_what_to_install(
    network: MeasuredNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TulipError, match=r"pip install 'tulip-ood\[figures\]'"):
        msp_shift.draw([network], tmp_path)
    assert list(tmp_path.iterdir()) == []
