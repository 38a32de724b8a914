"""TULiP's nearest kin against literal, loop-only second implementations: temperature, Laplace."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.detectors import laplace, tempscale
from tulip_ood.detectors.laplace import LastLayerLaplace
from tulip_ood.detectors.registry import METHODS, Method
from tulip_ood.detectors.tempscale import TemperatureScaling
from tulip_ood.detectors.weiper import WeiPer
from tulip_ood.errors import InputError, ModelError, NotFittedError
from tulip_ood.network.passes import Passes

from .literal_kin import features_and_logits, record, softmax

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
KINDS = [TemperatureScaling, LastLayerLaplace, WeiPer]


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
