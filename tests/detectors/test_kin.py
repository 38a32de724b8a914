"""TULiP's nearest kin against literal, loop-only second implementations: temperature, Laplace,
WeiPer."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.detectors import laplace, tempscale, weiper
from tulip_ood.detectors.laplace import LastLayerLaplace
from tulip_ood.detectors.registry import METHODS, Method
from tulip_ood.detectors.tempscale import TemperatureScaling
from tulip_ood.detectors.weiper import WeiPer
from tulip_ood.errors import InputError, ModelError, NotFittedError
from tulip_ood.network.features import Head
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import random

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
KINDS = [TemperatureScaling, LastLayerLaplace, WeiPer]


def record(detector: Any, x: torch.Tensor, y: torch.Tensor | None = None) -> Passes:
    """What the detector itself sees of inputs, so that the network's rounding is no difference."""
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    (passes,) = detector.engine.stream([(x, labels)], detector._needs())
    return passes  # type: ignore[no-any-return]


def features_and_logits(passes: Passes) -> tuple[np.ndarray, np.ndarray]:
    return passes.need_features().double().numpy(), passes.base.double().numpy()


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


# ------------------------------------------------------------------ for all of them


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vectors", "images"])
def test_a_score_does_not_depend_on_its_batch(
    kind: Any, name: str, request: pytest.FixtureRequest
) -> None:
    problem = request.getfixturevalue(name)
    detector = kind(problem.model).fit(problem.loader())
    x = problem.test[0][:40]
    whole = detector.score(x)
    assert whole.dtype == torch.float64
    assert bool(whole.isfinite().all())
    alone = torch.cat([detector.score(one) for one in x.split(1)])
    assert float((whole - alone).abs().max()) <= 1e-5 * detector.calibration.spread


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_scores_the_same(
    kind: Any, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, kind.name, Method(kind.name, kind, (), 1, ""))
    detector = kind(vectors.model, seed=3).fit(vectors.loader(), tune=[vectors.ood])
    detector.save(tmp_path / "detector.safetensors")
    again = tulip_ood.load(tmp_path / "detector.safetensors", vectors.model)
    assert type(again) is kind
    assert again.parameters == detector.parameters
    assert torch.equal(again.score(vectors.ood), detector.score(vectors.ood))
    assert torch.equal(again.predict(vectors.ood).probs, detector.predict(vectors.ood).probs)
    assert str(again.report()) == str(detector.report())


@pytest.mark.parametrize("kind", KINDS)
def test_only_classification(kind: Any) -> None:
    with pytest.raises(InputError, match="'classification'.*'regression'"):
        kind(nn.Linear(2, 1), task="regression")


@pytest.mark.parametrize("kind", KINDS)
def test_not_before_fit(kind: Any, vectors: Any) -> None:
    with pytest.raises(NotFittedError):
        kind(vectors.model).score(vectors.ood)


@pytest.mark.parametrize("kind", [LastLayerLaplace, WeiPer])
def test_training_data_may_come_in_any_batches(kind: Any, vectors: Any) -> None:
    x, y = vectors.test
    found = []
    for size in (7, 600):
        batches = list(zip(x.split(size), y.split(size), strict=True))
        detector = kind(vectors.model).fit(vectors.loader(), train=batches)
        found.append(detector.score(vectors.ood))
        assert detector._facts["n_train"] == 600
    spread = detector.calibration.spread
    assert float((found[0] - found[1]).abs().max()) <= 1e-5 * spread


@pytest.mark.parametrize("kind", [LastLayerLaplace, WeiPer])
def test_a_network_without_a_last_linear_layer_is_refused(kind: Any, vectors: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = vectors.model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = 3.0 * self.inner(x)
            return out

    with pytest.raises(ModelError, match="last linear layer"):
        kind(Scaled()).fit(vectors.loader())


# ------------------------------------------------------------------------- tempscale


def test_the_temperature_has_the_least_negative_log_likelihood(vectors: Any) -> None:
    detector = TemperatureScaling(vectors.model).fit(vectors.loader())
    passes = record(detector, *vectors.val)
    _, logits = features_and_logits(passes)
    labels = vectors.val[1].tolist()

    def nll(t: float) -> float:
        each = [-math.log(softmax(z / t)[c]) for z, c in zip(logits, labels, strict=True)]
        return sum(each) / len(each)

    found = detector._learn(passes)
    assert found.nll == pytest.approx(nll(found.temperature), rel=1e-10)
    assert found.nll_before == pytest.approx(nll(1.0), rel=1e-10)
    assert found.temperature > 1  # this network is over-confident
    at_best = nll(found.temperature)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        assert nll(found.temperature * factor) > at_best
    # The derivative, by central differences.
    step = 1e-4 * found.temperature
    assert abs(nll(found.temperature + step) - nll(found.temperature - step)) < 1e-9


def test_scores_and_probabilities_are_tempered(vectors: Any) -> None:
    detector = TemperatureScaling(vectors.model).fit(vectors.loader())
    passes = record(detector, vectors.ood[:50])
    _, logits = features_and_logits(passes)
    expected = np.stack([softmax(z / detector.fitted.temperature) for z in logits])
    np.testing.assert_allclose(detector.score(passes), 1 - expected.max(axis=1), atol=1e-12)
    np.testing.assert_allclose(detector.predict(passes).probs, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([0, 1], tempscale.COLDEST), ([1, 0], tempscale.HOTTEST)],
)
def test_a_temperature_without_an_optimum_stops_at_its_bound(
    labels: list[int], expected: float
) -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    found = tempscale._best_temperature(logits, torch.tensor(labels))
    assert found.temperature == expected


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_the_temperature_scales_with_the_logits(scale: float) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(500, 5, generator=generator, dtype=torch.float64)
    labels = (logits + torch.randn(500, 5, generator=generator)).argmax(1)
    plain = tempscale._best_temperature(logits, labels).temperature
    found = tempscale._best_temperature(2 * scale * logits / scale, labels).temperature
    assert found == pytest.approx(2 * plain, rel=1e-9)
    found = tempscale._best_temperature(max(scale, 0.3) * logits, labels).temperature
    assert found == pytest.approx(max(scale, 0.3) * plain, rel=1e-9)


# --------------------------------------------------------------------------- laplace


def dense_laplace(passes: Passes, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Posterior covariance and curvature of [weights, biases], written out as one matrix."""
    features, logits = features_and_logits(passes)
    n, d = features.shape
    o = logits.shape[1]
    a, g = np.zeros((d, d)), np.zeros((o, o))
    for h, z in zip(features, logits, strict=True):
        p = softmax(z)
        a += np.outer(h, h) / n
        g += np.diag(p) - np.outer(p, p)
    precision = np.zeros((o * d + o, o * d + o))
    precision[: o * d, : o * d] = np.kron(g, a)
    precision[o * d :, o * d :] = g
    return np.linalg.inv(precision + delta * np.eye(len(precision))), precision


def test_laplace_is_the_dense_posterior(vectors: Any) -> None:
    detector = LastLayerLaplace(vectors.model, prior_precision=0.7).fit(vectors.loader())
    known, asked = record(detector, *vectors.val), record(detector, vectors.ood[:30])
    state = detector._learn(known)
    covariance, _ = dense_laplace(known, 0.7)
    features, logits = features_and_logits(asked)
    o, d = logits.shape[1], features.shape[1]
    expected = []
    for h, z in zip(features, logits, strict=True):
        jacobian = np.zeros((o, o * d + o))
        for c in range(o):
            jacobian[c, c * d : (c + 1) * d] = h
            jacobian[c, o * d + c] = 1.0
        variance = np.diag(jacobian @ covariance @ jacobian.T)
        expected.append(softmax(z / np.sqrt(1 + math.pi / 8 * variance)))
    probs = np.stack(expected)
    entropy = [-sum(q * math.log(q) for q in row if q > 0) for row in probs]
    np.testing.assert_allclose(detector._probs(state, asked), probs, atol=1e-9)
    np.testing.assert_allclose(detector._score(state, asked), entropy, atol=1e-9)
    again = detector.predict(asked).probs
    assert torch.equal(again, detector._probs(detector.fitted, asked))


def test_the_prior_has_the_largest_marginal_likelihood(vectors: Any) -> None:
    detector = LastLayerLaplace(vectors.model).fit(vectors.loader())
    passes = record(detector, *vectors.val)
    head = vectors.model[-1]
    theta = torch.cat([head.weight.flatten(), head.bias]).detach().double().numpy()
    _, precision = dense_laplace(passes, 1.0)

    def evidence(delta: float) -> float:
        posterior = np.linalg.slogdet(precision + delta * np.eye(len(precision)))[1]
        return 0.5 * (len(theta) * math.log(delta) - delta * theta @ theta - posterior)

    found = detector._learn(passes).prior_precision
    assert 1e-6 < found < 1e6
    for factor in (0.5, 0.95, 0.999, 1.001, 1.05, 2.0):
        assert evidence(found * factor) < evidence(found)
    assert "marginal likelihood" in str(detector.report())


def test_a_last_layer_without_biases_has_no_variance_of_biases(vectors: Any) -> None:
    model = nn.Sequential(*vectors.model[:-1], nn.Linear(32, 3, bias=False))
    model[-1].weight.data = vectors.model[-1].weight.data
    with_bias = LastLayerLaplace(vectors.model, prior_precision=1.0).fit(vectors.loader())
    without = LastLayerLaplace(model, prior_precision=1.0).fit(vectors.loader())
    assert bool((with_bias.fitted.bias_variances > 0).all())
    assert bool((without.fitted.bias_variances == 0).all())


def test_the_curvature_of_very_sure_outputs_is_not_rounded_away() -> None:
    p = torch.tensor([[40.0, 0.0]], dtype=torch.float64).softmax(-1)  # 1 − p rounds to 0
    found = laplace._uncertain(p)
    assert float(found[0, 0]) == pytest.approx(math.exp(-40), rel=1e-9)
    assert float(found[0, 0] + found[0, 1]) == pytest.approx(0, abs=1e-25)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf])
def test_a_prior_that_is_none_is_refused(bad: float, vectors: Any) -> None:
    with pytest.raises(InputError, match="prior_precision"):
        LastLayerLaplace(vectors.model, prior_precision=bad)


def test_a_last_layer_of_zeros_needs_a_prior(vectors: Any) -> None:
    model = nn.Sequential(*vectors.model[:-1], nn.Linear(32, 3))
    for parameter in model[-1].parameters():
        parameter.data.zero_()
    with pytest.raises(ModelError, match="prior_precision="):
        LastLayerLaplace(model).fit(vectors.loader())


# ---------------------------------------------------------------------------- weiper


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
    heads = detector.perturbed_heads(Head(head.weight.detach(), head.bias.detach()))
    moved = heads.weight.unflatten(0, (5, -1)) - head.weight.detach().double()
    share = moved.norm(dim=-1) / head.weight.detach().double().norm(dim=-1)
    assert float((share - 1.8).abs().max()) < 1e-9
    assert torch.equal(heads.bias, head.bias.detach().double().repeat(5))
    other = WeiPer(images.model, distance=1.8, repeats=5, seed=1)
    assert not torch.equal(heads.weight, other.perturbed_heads(heads).weight[: len(heads.weight)])


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
