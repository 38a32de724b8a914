"""The noise depends on the seed, the pair and the parameter's name, and on nothing else."""

from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.errors import InputError
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.numerics import random
from tulip_ood.numerics.random import normal

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def perturbation(model: nn.Module, problem: Any, **settings: Any) -> Any:
    detector = tulip_ood.Tulip(model, **settings).fit(problem.loader(), recipe="balanced")
    return detector.engine.perturbation(detector._settings())


def noise_of(made: Any) -> list[dict[str, torch.Tensor]]:
    """v_i in units of ε, recovered from the perturbed weights."""
    own, epsilon = made.network.parameters, made.settings.epsilon
    return [{n: (w[n] - own[n]) / epsilon for n in made.scales} for w in made.noisy()]


def test_each_parameter_gets_its_own_numbers(vectors: Any) -> None:
    made = perturbation(vectors.model.double(), vectors, epsilon=0.01, n_samples=4)
    try:
        drawn = noise_of(made)
        for i, sample in enumerate(drawn):
            sign = 1.0 if i % 2 == 0 else -1.0
            for name, value in sample.items():
                expected = sign * normal(value.shape, seed=0, name=name, index=i // 2)
                torch.testing.assert_close(value, expected.double(), rtol=0, atol=1e-9)
    finally:
        vectors.model.float()


def test_independent_draws(vectors: Any) -> None:
    made = perturbation(vectors.model, vectors, antithetic=False, n_samples=3)
    first, second, third = noise_of(made)
    for name in made.scales:
        assert not torch.allclose(first[name], -second[name], atol=0.1)
        assert not torch.allclose(first[name], third[name], atol=0.1)


def test_scope_does_not_change_the_noise(vectors: Any) -> None:
    whole = noise_of(perturbation(vectors.model, vectors))[0]
    part = noise_of(perturbation(vectors.model, vectors, scope="4.*"))[0]
    assert sorted(part) == ["4.bias", "4.weight"]
    assert torch.equal(part["4.weight"], whole["4.weight"])


def test_another_seed_gives_other_noise(vectors: Any) -> None:
    one = noise_of(perturbation(vectors.model, vectors))[0]
    other = noise_of(perturbation(vectors.model, vectors, seed=1))[0]
    assert not torch.allclose(one["0.weight"], other["0.weight"], atol=0.1)


def test_layer_scale_multiplies_noise_and_drift(vectors: Any) -> None:
    plain = perturbation(vectors.model, vectors)
    scaled = perturbation(vectors.model, vectors, layer_scale={"0.*": 0.5, "2.bias": 0})
    own = plain.network.parameters
    for weights, other in (
        (next(iter(plain.noisy())), next(iter(scaled.noisy()))),
        (plain.drifted(), scaled.drifted()),
    ):
        moved, half = weights["0.weight"] - own["0.weight"], other["0.weight"] - own["0.weight"]
        torch.testing.assert_close(half, 0.5 * moved, rtol=1e-4, atol=1e-7)
        assert torch.equal(other["2.bias"], own["2.bias"])
        assert torch.equal(other["4.weight"], weights["4.weight"])


def test_the_drift_moves_away_from_the_initial_mean(images: Any) -> None:
    made = perturbation(images.model, images, epsilon=0.01)
    own, drifted = made.network.parameters, made.drifted()
    for name in made.scales:
        mean = 1.0 if name in ("1.weight", "4.weight") else 0.0
        expected = own[name] + 0.01 * 8.0 * (own[name] - mean)
        torch.testing.assert_close(drifted[name], expected)


@pytest.mark.parametrize(("n", "pairs"), [(1, 1), (2, 1), (3, 2), (10, 5)])
def test_antithetic_pairs(n: int, pairs: int) -> None:
    settings = PassSettings(0.01, n_samples=n)
    drawn = [settings.sample(i) for i in range(n)]
    assert len({pair for pair, _ in drawn}) == pairs
    assert [sign for _, sign in drawn] == [1.0, -1.0] * (n // 2) + [1.0] * (n % 2)


def test_the_checksum_is_of_the_noise_itself(vectors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other normal numbers from the same integers are other noise; so is another last pair."""
    made = perturbation(vectors.model, vectors)
    before = made.checksum()
    assert made.checksum() == before
    assert perturbation(vectors.model, vectors, seed=1).checksum() != before
    honest = random.normal
    monkeypatch.setattr(random, "normal", lambda *a, **k: -honest(*a, **k))
    assert made.checksum() != before

    def only_last(*a: Any, index: int = 0, **k: Any) -> torch.Tensor:
        return honest(*a, index=index + (index == 4), **k)

    monkeypatch.setattr(random, "normal", only_last)
    assert made.checksum() != before


def test_without_the_drift(vectors: Any) -> None:
    whole = PassSettings(0.01, n_samples=4)
    part = whole.with_(drift=False)
    assert (whole.n_passes, part.n_passes, whole.with_(n_samples=0).n_passes) == (6, 5, 1)
    made = perturbation(vectors.model, vectors)
    for hold in (True, False):
        both = [
            Perturbation(made.network, made.scales, made.means, settings, hold=hold)
            for settings in (whole, part)
        ]
        passes, without = (run_passes(p, vectors.ood, batch_size=64) for p in both)
        assert passes.drift is not None
        assert without.drift is None
        assert torch.equal(without.noisy, passes.noisy)
        assert without.finite.all()
        assert 5 * both[1].held_bytes == 4 * both[0].held_bytes
        assert len(both[0]._held or []) == (5 if hold else 0)
        assert len(both[1]._held or []) == (4 if hold else 0)
    Needs(part).check(passes)  # more than was asked for is enough
    Needs(part.with_(delta=1.0)).check(passes)
    with pytest.raises(InputError, match="these passes were made with"):
        Needs(whole).check(without)
    with pytest.raises(InputError, match="these passes were made with"):
        Needs(part.with_(epsilon=0.02)).check(passes)


def test_shaped_features_without_the_drift(vectors: Any) -> None:
    made = perturbation(vectors.model, vectors)
    settings = PassSettings(0.01, n_samples=2)
    shaped = []
    for drift in (True, False):
        chosen = settings.with_(drift=drift)
        p = Perturbation(made.network, made.scales, made.means, chosen)
        needs = Needs(chosen, noisy_features=True)
        passes = run_passes(p, vectors.ood, batch_size=64, needs=needs)
        shaped.append(passes.reshaped(lambda features: features.clamp_max(1.0)))
    assert torch.equal(shaped[0].noisy, shaped[1].noisy)
    assert shaped[1].drift is None


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "0", True, None])
def test_seeds_out_of_range_are_refused(seed: Any) -> None:
    with pytest.raises(InputError, match="a seed must be a whole number from 0 to"):
        PassSettings(0.01, seed=seed)
    with pytest.raises(InputError, match="a seed must be a whole number from 0 to"):
        normal((1,), seed=seed, name="w")
    with pytest.raises(InputError, match="a seed must be a whole number from 0 to"):
        collect_rows([(torch.zeros(1, 2), torch.zeros(1))], seed=seed)
    assert PassSettings(0.01, seed=2**63 - 1).seed == 2**63 - 1


def test_memory_is_said_before_it_is_taken(vectors: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="tulip_ood")
    detector = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    size = sum(p.numel() * 8 for p in vectors.model.parameters()) * 11
    assert detector.memory() == size
    assert f"holding 11 perturbed copies of 6 parameters: {size / 1e6:.1f} MB" in caplog.text
    assert "perturbed weights held in memory" in str(detector.report())
