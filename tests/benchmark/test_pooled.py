"""Differences over images, networks and noise, against a loop that really draws the indices."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tulip_ood.benchmark.averages import field_of, of_networks
from tulip_ood.benchmark.bootstrap import Interval
from tulip_ood.benchmark.pooled import Pooled, pool
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet, Run
from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics
from tulip_ood.numerics.random import uniform

from .synthetic import SETS, benchmark

RESAMPLES, SEED = 25, 4
KEYS = [
    (group, metric)
    for group in ("near", "far")
    for metric in ("auroc", "id_flagged_at_95_ood", "ood_missed_at_95_id")
] + [("id", "aurc")]


@functools.cache
def indices(n: int, name: str, b: int) -> Tensor:
    places = uniform((n,), seed=SEED, name=f"bootstrap/{name}", index=b)
    return (places * n).long().clamp_max(n - 1)


def literal_number(run: Run, group: str, metric: str, b: int) -> float:
    """A metric of one run on the images of one resample, which are really picked out."""
    inside = indices(len(run.result.id_scores), "id", b)
    if metric == "aurc":
        return metrics.aurc(run.result.id_scores[inside], run.result.wrong[inside])
    values = []
    for name, (of_group, size, _, _) in SETS.items():
        if of_group == group:
            outside = run.result.sets[name].scores[indices(size, f"ood/{name}", b)]
            values.append(getattr(metrics, metric)(run.result.id_scores[inside], outside))
    return sum(values) / len(values)


def literal_draws(made: Benchmark, method: str, group: str, metric: str) -> Tensor:
    """The mean of a method on every resample, by loops over networks and noise seeds drawn."""
    field = field_of(made, "val")
    n = len(field.networks)
    networks = uniform((RESAMPLES, n), seed=SEED, name="bootstrap/networks")
    noise = uniform((RESAMPLES, n, field.noise_seeds), seed=SEED, name="bootstrap/noise")
    found = []
    for b in range(RESAMPLES):
        of_networks = []
        for place in range(n):
            network = field.networks[int(networks[b, place] * n)]
            runs = field.methods[method][network]
            chosen = [runs[int(noise[b, place, k] * len(runs))] for k in range(len(runs))]
            of_seeds = [literal_number(run, group, metric, b) for run in chosen]
            of_networks.append(sum(of_seeds) / len(of_seeds))
        found.append(sum(of_networks) / n)
    return torch.tensor(found, dtype=torch.float64)


def unscorable(scores: Tensor) -> Tensor:
    return torch.where(scores > 1.5, math.inf, scores)


@pytest.mark.parametrize(
    "change",
    [lambda scores: scores, lambda scores: (2 * scores).round(), unscorable],
    ids=["no ties", "ties", "+inf"],
)
def test_differences_are_those_of_a_loop_over_indices(change: Callable[[Tensor], Tensor]) -> None:
    made = benchmark(noise_seeds=lambda m: (0, 1, 2) if m == "tulip" else (0,), change=change)
    pooled = pool(made, "val", resamples=RESAMPLES, seed=SEED)
    for group, metric in KEYS:
        drawn = {m: literal_draws(made, m, group, metric) for m in ("tulip", "ent")}
        gap = drawn["tulip"] - drawn["ent"]
        low, high = torch.quantile(gap, torch.tensor([0.025, 0.975], dtype=gap.dtype)).tolist()
        found = pooled.difference("tulip", "ent", group, metric)
        assert found.low == pytest.approx(low, abs=1e-12), (group, metric)
        assert found.high == pytest.approx(high, abs=1e-12), (group, metric)
        for name, each in drawn.items():
            assert torch.allclose(pooled.drawn[name][group, metric], each, rtol=0, atol=1e-12)


def test_blocks_of_resamples_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    made = benchmark()
    whole = pool(made, "val", resamples=20)
    monkeypatch.setattr("tulip_ood.benchmark.pooled._BLOCK_BYTES", 8 * 80 * 3)
    steps: list[tuple[int, int | None]] = []
    pieces = pool(
        made, "val", resamples=20, progress=lambda what, done, total: steps.append((done, total))
    )
    for name in whole.methods:
        for key in KEYS:
            assert torch.equal(whole.drawn[name][key], pieces.drawn[name][key])
    assert steps[-1] == (7 * 9, 7 * 9)


def test_means_and_spreads_are_over_networks_of_means_over_noise() -> None:
    made = benchmark(noise_seeds=lambda m: (5, 1) if m == "tulip" else (0,))
    pooled = pool(made, "val", resamples=3)
    for method in pooled.methods:
        each = []
        for network in ("s0", "s1", "s2"):
            runs = [r for r in made.runs if (r.method, r.network) == (method, network)]
            near = [
                (r.result.sets["cifar100"].auroc + r.result.sets["tin"].auroc) / 2 for r in runs
            ]
            each.append(sum(near) / len(near))
        values = torch.tensor(each, dtype=torch.float64)
        assert pooled.mean(method, "near", "auroc") == pytest.approx(float(values.mean()))
        population = float(values.std(correction=0))
        assert pooled.spread(method, "near", "auroc") == pytest.approx(population)


def test_one_network_is_not_resampled_and_that_is_said() -> None:
    one = pool(benchmark(networks=["s0"]), "val", resamples=5)
    assert math.isnan(one.spread("ent", "near", "auroc"))
    assert "one network and one noise seed" in one.chance
    noisy = pool(benchmark(networks=["s0"], noise_seeds=lambda m: (0, 1)), "val", resamples=5)
    assert noisy.chance == (
        "test images and 2 noise seeds; one network: how others would differ is not in it"
    )
    both = pool(benchmark(noise_seeds=lambda m: (0, 1)), "val", resamples=5)
    assert both.chance == "test images, 3 networks and 2 noise seeds"


def test_networks_that_disagree_widen_the_interval() -> None:
    """Images alone would call a difference clear that one network of three does not show."""
    gains = ({"ent": 0.5, "tulip": 1.5}, {"ent": 0.5, "tulip": 1.5}, {"ent": 1.5, "tulip": 0.5})
    runs = tuple(
        run
        for network, strength in zip(("s0", "s1", "s2"), gains, strict=True)
        for run in benchmark(networks=[network], strength=strength).runs
    )
    several = Benchmark("cifar10", runs, benchmark().sets)
    assert (
        pool(benchmark(networks=["s0"], strength=gains[0]), "val")
        .difference("tulip", "ent", "near", "auroc")
        .clear
    )
    found = pool(several, "val").difference("tulip", "ent", "near", "auroc")
    assert found.value > 0
    assert not found.clear


def test_the_best_is_bold_only_where_it_is_clear() -> None:
    clear = pool(benchmark(strength={"ent": 0.3, "msp": 0.2, "tulip": 3.0}), "val")
    assert clear.clearly_best("near", "auroc").name == clear.best("near", "auroc") == "tulip"
    assert clear.clearly_best("near", "id_flagged_at_95_ood").name == "tulip"  # the lowest
    close = pool(benchmark(strength={"ent": 1.0, "msp": 1.02, "gradnorm": -1.0}), "val")
    found = close.clearly_best("near", "auroc")
    assert found.name is None
    assert set(found.tied) == {"ent", "msp"}
    alone = pool(benchmark(strength={"ent": 1.0}), "val")
    assert alone.clearly_best("near", "auroc").name is None


def test_equal_scores_are_tied() -> None:
    made = benchmark(strength={"ent": 1.0})
    copies = tuple(Run(**{**vars(run), "method": "copy"}) for run in made.runs)
    pooled = pool(Benchmark("cifar10", made.runs + copies, made.sets), "val")
    found = pooled.difference("copy", "ent", "far", "auroc")
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert pooled.clearly_best("far", "auroc").tied == ("ent", "copy")


def without(made: Benchmark, method: str, network: str) -> Benchmark:
    runs = tuple(r for r in made.runs if (r.method, r.network) != (method, network))
    return Benchmark(made.id_set, runs, made.sets)


def test_methods_without_all_networks_are_left_out_and_named() -> None:
    pooled = pool(without(benchmark(), "msp", "s1"), "val", resamples=3)
    assert pooled.methods == ("ent", "tulip")
    assert pooled.partial == {"msp": "on 2 of 3 networks"}
    with pytest.raises(InputError, match=r"'msp' is not pooled .*on 2 of 3 networks"):
        pooled.mean("msp", "near", "auroc")
    with pytest.raises(InputError, match="there is no 'f1' of 'near'; there are near auroc"):
        pooled.mean("ent", "near", "f1")


def test_tracks_are_never_mixed() -> None:
    made = benchmark(tracks=["val", "train"])
    val, train = (pool(made, track, resamples=3) for track in ("val", "train"))
    assert val.mean("ent", "near", "auroc") != train.mean("ent", "near", "auroc")


def replaced(made: Benchmark, place: int, **changes: object) -> Benchmark:
    runs = list(made.runs)
    runs[place] = Run(**{**vars(runs[place]), **changes})
    return Benchmark(made.id_set, tuple(runs), made.sets)


def test_what_cannot_be_pooled_is_refused() -> None:
    made = benchmark()
    with pytest.raises(InputError, match="resamples must be at least 1"):
        pool(made, "val", resamples=0)
    with pytest.raises(InputError, match=r"no runs on the track 'train'; it has val"):
        pool(made, "train")
    with pytest.raises(InputError, match=r"ent is there twice on s0 with noise seed 0"):
        pool(replaced(made, 1, method="ent"), "val")
    other = benchmark(n_id=70).runs[1].result
    with pytest.raises(InputError, match=r"msp on s0 has scores of other images"):
        pool(replaced(made, 1, result=other), "val")
    unnamed = Benchmark("cifar10", made.runs, {k: v for k, v in made.sets.items() if k != "tin"})
    with pytest.raises(InputError, match=r"tin was scored but is not among"):
        pool(unnamed, "val")
    more = {**made.sets, "svhn": BenchmarkSet("svhn", "far", 10)}
    with pytest.raises(InputError, match=r"svhn is among the benchmark's sets, but ent on s0"):
        pool(Benchmark("cifar10", made.runs, more), "val")
    split = benchmark(networks=["s0"], strength={"ent": 1.0}).runs
    split += benchmark(networks=["s1"], strength={"msp": 1.0}).runs
    with pytest.raises(InputError, match="no method of the track 'val' ran on all of s0, s1"):
        pool(Benchmark("cifar10", split, made.sets), "val")


def test_a_benchmark_without_far_sets_has_no_far_numbers() -> None:
    near = {name: each for name, each in SETS.items() if each[0] == "near"}
    pooled: Pooled = pool(benchmark(sets=near), "val", resamples=3)
    assert pooled.has("near", "auroc")
    assert not pooled.has("far", "auroc")


def test_an_interval_on_the_other_side_of_its_value_is_not_clear() -> None:
    assert Interval(0.1, 0.05, 0.2).clear
    assert Interval(-0.1, -0.2, -0.05).clear
    assert not Interval(0.1, -0.3, -0.05).clear
    assert not Interval(-0.1, 0.05, 0.3).clear
    assert not Interval(0.0, 0.05, 0.3).clear
    assert not Interval(math.nan, 0.05, 0.3).clear


def test_an_ensemble_has_no_spread_and_is_not_judged_over_networks() -> None:
    strength = {"ent": 0.3, "tulip": 2.0, "ensemble": 4.0, "ensemble&knn": 4.0}
    several = pool(benchmark(strength=strength), "val")
    assert math.isnan(several.spread("ensemble", "near", "auroc"))
    assert several.mean("ensemble", "near", "auroc") > several.mean("tulip", "near", "auroc")
    assert several.judged == ("ent", "tulip")
    assert several.clearly_best("near", "auroc") == ("tulip", ())
    one = pool(benchmark(networks=["s0"], strength=strength), "val")
    assert one.best("near", "auroc") in ("ensemble", "ensemble&knn")
    alone = pool(benchmark(strength={"ensemble": 1.0}), "val", resamples=3)
    assert alone.clearly_best("near", "auroc") == (None, ())


def test_some_networks_alone() -> None:
    ids = ("net-0123456789", "net-abcdefabcd", "other-0000000000")
    made = benchmark(networks=ids)
    assert {r.network for r in of_networks(made, ["net"]).runs} == set(ids[:2])
    assert {r.network for r in of_networks(made, [ids[0], "other"]).runs} == {ids[0], ids[2]}
    with pytest.raises(InputError, match=r"no network 'ne' in this benchmark; there are net-01"):
        of_networks(made, ["net", "ne"])
