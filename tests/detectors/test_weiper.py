"""WeiPer+KLD: its formula, its histograms, and its noise in bounded memory."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.detectors import perturbed_heads, weiper
from tulip_ood.detectors.perturbed_heads import PerturbedHeads
from tulip_ood.detectors.weiper import WeiPer
from tulip_ood.errors import InputError
from tulip_ood.network.features import Head
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import blocks, random

from .literal_kin import features_and_logits, record, softmax

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def literal_density(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    edges = [low + i * (high - low) / bins for i in range(bins + 1)]
    shares = np.zeros(bins)
    for value in values:
        for i in range(bins):
            last = i == bins - 1 and value == high
            if edges[i] <= value < edges[i + 1] or last:
                shares[i] += 1 / len(values)
    return shares


def literal_divergence(mean: np.ndarray, shares: np.ndarray, smoothing: int, floor: float) -> float:
    bins = len(mean)
    q = np.zeros(bins)
    for i in range(bins):
        for j in range(i - (smoothing - 1) // 2, i - (smoothing - 1) // 2 + smoothing):
            q[i] += shares[min(max(j, 0), bins - 1)] / smoothing
    p, q = mean + floor, q + floor
    p, q = p / p.sum(), q / q.sum()
    there = sum(p[i] * math.log(p[i] / q[i]) for i in range(bins))
    back = sum(q[i] * math.log(q[i] / p[i]) for i in range(bins))
    return there + back


def test_weiper_is_its_formula_written_out(images: Any) -> None:
    bins, r, lambda_1, lambda_2, s1, s2 = 20, 3, 1.5, 0.4, 3, 4
    detector = WeiPer(
        images.model,
        lambda_1=lambda_1,
        lambda_2=lambda_2,
        smoothing=s1,
        smoothing_perturbed=s2,
        distance=0.9,
        repeats=r,
        n_bins=bins,
    ).fit(images.loader())
    known_passes, asked = record(detector, *images.val), record(detector, images.ood[:8])
    head = images.model[-1]
    weight, bias = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
    perturbed = []
    for noise in random.normal((r, *weight.shape), seed=0, name="weiper").double().numpy():
        rows = []
        for w, v in zip(weight, noise, strict=True):
            rows.append(w + 0.9 * np.linalg.norm(w) * v / np.linalg.norm(v))
        perturbed.append(np.stack(rows))

    def views(passes: Passes) -> tuple[list[np.ndarray], list[np.ndarray]]:
        features, _ = features_and_logits(passes)
        return list(features), [np.stack([w @ h + bias for w in perturbed]) for h in features]

    known, known_logits = views(known_passes)
    ranges = [
        (min(v.min() for v in found), max(v.max() for v in found))
        for found in (known, known_logits)
    ]
    means = []
    for (low, high), found in zip(ranges, (known, known_logits), strict=True):
        pooled = np.stack([v.flatten() for v in found]).flatten()
        means.append(np.histogram(pooled, bins=bins, range=(low, high))[0] / len(pooled))
    expected = []
    for h, z in zip(*views(asked), strict=True):
        own = literal_density(h, *ranges[0], bins)
        own_logits = literal_density(z.flatten(), *ranges[1], bins)
        sure = sum(softmax(row).max() for row in z) / r
        expected.append(
            literal_divergence(means[0], own, s1, 0.01)
            + lambda_1 * literal_divergence(means[1], own_logits, s2, 0.025)
            - lambda_2 * sure
        )
    found = detector._score(detector._learn(known_passes), asked)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("held", [1 << 22, 100])
def test_the_streaming_histogram_is_the_histogram(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weiper, "_HELD", held)
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:2000] = 0.0  # as after a ReLU
    values = values.abs() * torch.linspace(0.001, 40, 5000)  # the range grows as they come
    expected = np.histogram(values.numpy(), bins=60)[0] / 5000
    found = []
    for size, order in ((50, values), (64, values.flip(0)), (5000, values)):
        histogram = weiper._Histogram()
        for part in order.split(size):
            histogram.add(part)
        found.append(histogram.density(60))
        np.testing.assert_allclose(found[-1].mass, expected, atol=2e-4 if held == 100 else 1e-12)
    assert all(torch.equal(one.mass, found[0].mass) for one in found)
    assert (found[0].low, found[0].high) == (0.0, float(values.max()))


@pytest.mark.parametrize("held", [1 << 22, 5])
@pytest.mark.parametrize("first", [0.0, 1e9, -1e-9])
def test_a_histogram_that_starts_with_one_value(
    first: float, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weiper, "_HELD", held)
    histogram = weiper._Histogram()
    histogram.add(torch.full((10,), first, dtype=torch.float64))
    with pytest.raises(InputError, match="all values are"):
        histogram.density(4)
    histogram.add(torch.tensor([first + 1e12], dtype=torch.float64))
    assert histogram.density(4).mass.tolist() == pytest.approx([10 / 11, 0, 0, 1 / 11])


def test_values_beyond_the_known_range_count_in_no_bin() -> None:
    density = weiper.Density(0.0, 1.0, torch.ones(2) / 2)
    shares = density.shares(torch.tensor([[-0.1, 0.0, 0.5, 1.0, 1.1, math.nan]]))
    assert shares.tolist() == [[1 / 6, 2 / 6]]


def test_the_noise_keeps_its_share_of_every_class(images: Any) -> None:
    detector = WeiPer(images.model, distance=1.8, repeats=5)
    head = images.model[-1]
    (heads,) = detector.perturbed_heads.blocks(Head(head.weight.detach(), head.bias.detach()))
    moved = heads.weight.unflatten(0, (5, -1)) - head.weight.detach().double()
    share = moved.norm(dim=-1) / head.weight.detach().double().norm(dim=-1)
    assert float((share - 1.8).abs().max()) < 1e-9
    assert torch.equal(heads.bias, head.bias.detach().double().repeat(5))
    other = WeiPer(images.model, distance=1.8, repeats=5, seed=1)
    (others,) = other.perturbed_heads.blocks(Head(head.weight.detach(), head.bias.detach()))
    assert not torch.equal(heads.weight, others.weight)


def test_perturbed_heads_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of all at once, a few repeats at a time; held only where they are few."""
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(7, 5, generator=generator), torch.randn(7, generator=generator))
    how: dict[str, Any] = {"repeats": 9, "distance": 1.8, "seed": 3}
    (whole,) = PerturbedHeads(**how, memory=1 << 20).blocks(head)
    noise = random.normal((9, 7, 5), seed=3, name="weiper").double()
    weight = head.weight.double()
    moved = nn.functional.normalize(noise, dim=-1) * 1.8 * weight.norm(dim=1, keepdim=True)
    assert torch.equal(whole.weight, (weight + moved).flatten(0, 1))
    monkeypatch.setattr(perturbed_heads, "_AT_ONCE", 80)  # two repeats
    monkeypatch.setattr(blocks, "_NUMBERS", 15)  # three classes
    for held in (0, 1 << 20):
        some = PerturbedHeads(**how, memory=held)
        found = list(some.blocks(head))
        assert [len(block.bias) for block in found] == [14, 14, 14, 14, 7]
        assert torch.equal(torch.cat([block.weight for block in found]), whole.weight)
        assert torch.equal(torch.cat([block.bias for block in found]), whole.bias)
        again = list(some.blocks(head))
        assert all((a is b) == bool(held) for a, b in zip(found, again, strict=True))


def test_weiper_in_blocks_is_weiper(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing as large as repeats × classes × features or inputs, and the same scores."""
    plain = WeiPer(images.model, repeats=11).fit(images.loader())
    expected = plain.score(images.ood)
    seen: list[int] = []
    whole = Head.logits

    def logits(self: Head, features: torch.Tensor) -> torch.Tensor:
        seen.append(max(self.weight.numel(), len(features) * len(self.bias)))
        return whole(self, features)

    outputs, d = images.model[-1].weight.shape
    monkeypatch.setattr(Head, "logits", logits)
    monkeypatch.setattr(perturbed_heads, "_AT_ONCE", 2 * outputs * d)
    monkeypatch.setattr(weiper, "_READ", 5 * d)
    monkeypatch.setattr(blocks, "_NUMBERS", 4 * outputs)
    detector = WeiPer(images.model, repeats=11)
    monkeypatch.setattr(detector.perturbed_heads, "_memory", 0)
    found = detector.fit(images.loader()).score(images.ood)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert max(seen) <= max(2 * outputs * d, 4 * outputs)


def test_a_loaded_weiper_draws_its_heads_once(images: Any, tmp_path: Any) -> None:
    """Calls work on a copy of the detector: what one of them has drawn is there for the next."""
    WeiPer(images.model, repeats=3).fit(images.loader()).save(tmp_path / "w.safetensors")
    detector: Any = tulip_ood.load(tmp_path / "w.safetensors", images.model)
    detector.score(images.ood[:2])
    assert detector.perturbed_heads._held is not None


@pytest.mark.parametrize(
    "bad", [{"distance": 0.0}, {"repeats": 0}, {"n_bins": 1}, {"smoothing": 0}]
)
def test_numbers_that_cannot_work_are_refused(bad: dict[str, Any], vectors: Any) -> None:
    with pytest.raises(InputError, match="weiper needs"):
        WeiPer(vectors.model, **bad)


def test_parameters_are_chosen_and_kept(images: Any) -> None:
    detector = WeiPer(images.model, repeats=5).fit(images.loader(), tune=[images.ood])
    assert detector._facts["tried"] == 32
    assert all(detector.parameters[name] in tried for name, tried in WeiPer.search.items())
