"""Scores of predictions: each against its formula in plain Python, and what must hold for all."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics import scores

PROPERTY = settings(deadline=None, max_examples=100)


@st.composite
def logits(draw: st.DrawFn, largest: float = 60.0) -> Tensor:
    """Samples [M, N, o], float64, from calm to very confident."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(2, 6)))
    size = draw(st.sampled_from([0.0, 1.0, 10.0, largest]))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    return size * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)


def plain_probability(samples: Tensor, n: int) -> list[float]:
    """mean_i softmax(f̃_i) of input n."""
    m, _, o = samples.shape
    mean = [0.0] * o
    for i in range(m):
        row = samples[i, n].tolist()
        top = max(row)
        weights = [math.exp(v - top) for v in row]
        for c in range(o):
            mean[c] += weights[c] / sum(weights) / m
    return mean


def plain_score(name: str, samples: Tensor, n: int) -> float:
    m, _, o = samples.shape
    p = plain_probability(samples, n)
    if name == "ent":
        return -sum(v * math.log(v) for v in p if v > 0)
    if name == "msp":
        top = max(range(o), key=p.__getitem__)
        return sum(v for c, v in enumerate(p) if c != top)
    if name == "gen":
        p.sort(reverse=True)
        return (p[0] * sum(p[1:])) ** 0.1 + sum((v * (1 - v)) ** 0.1 for v in p[1:100])
    rows = [samples[i, n].tolist() for i in range(m)]
    if name == "mls":
        return -max(sum(row[c] for row in rows) / m for c in range(o))
    return -sum(max(row) + math.log(sum(math.exp(v - max(row)) for v in row)) for row in rows) / m


@pytest.mark.parametrize("name", scores.SCORES)
@PROPERTY
@given(logits())
def test_every_score_is_its_formula(name: str, samples: Tensor) -> None:
    found = scores.sample_score(name, samples)
    assert found.dtype == torch.float64
    for n, value in enumerate(found.tolist()):
        assert value == pytest.approx(plain_score(name, samples, n), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", scores.SCORES)
@PROPERTY
@given(logits())
def test_scores_ignore_the_order_of_classes_and_of_samples(name: str, samples: Tensor) -> None:
    mixed = samples.flip(0).flip(-1)
    torch.testing.assert_close(
        scores.sample_score(name, mixed), scores.sample_score(name, samples), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["ent", "msp", "gen"])
@PROPERTY
@given(logits(), st.floats(-50, 50))
def test_probability_scores_ignore_a_constant_in_the_logits(
    name: str, samples: Tensor, shift: float
) -> None:
    torch.testing.assert_close(
        scores.sample_score(name, samples + shift),
        scores.sample_score(name, samples),
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("name", ["mls", "ebo"])
@PROPERTY
@given(logits(), st.floats(-50, 50))
def test_logit_scores_fall_by_a_constant_in_the_logits(
    name: str, samples: Tensor, shift: float
) -> None:
    torch.testing.assert_close(
        scores.sample_score(name, samples + shift), scores.sample_score(name, samples) - shift
    )


@PROPERTY
@given(logits())
def test_bounds_of_entropy_and_msp(samples: Tensor) -> None:
    """0 ≤ H ≤ log o and 0 ≤ 1 − max p ≤ 1 − 1/o; averaging over samples only raises entropy."""
    o = samples.shape[-1]
    entropy = scores.sample_score("ent", samples)
    assert bool((entropy >= 0).all())
    assert bool((entropy <= math.log(o) + 1e-12).all())
    msp = scores.sample_score("msp", samples)
    assert bool((msp >= 0).all())
    assert bool((msp <= 1 - 1 / o + 1e-12).all())
    each = torch.stack([scores.entropy(s.softmax(-1)) for s in samples]).mean(dim=0)
    assert bool((entropy >= each - 1e-12).all())


def test_dots_may_be_inputs_and_positions() -> None:
    samples = torch.randn(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    for name in scores.SCORES:
        dense = scores.sample_score(name, samples)
        flat = scores.sample_score(name, samples.reshape(3, 40, 6))
        assert dense.shape == (2, 4, 5)
        torch.testing.assert_close(dense.flatten(), flat)


def test_very_confident_predictions_keep_their_order() -> None:
    """Where 1 − max p rounds to 0 in float64, entropy, MSP and GEN still tell inputs apart."""
    margin = torch.arange(10.0, 300.0, 10.0, dtype=torch.float64)
    samples = torch.stack([margin, torch.zeros_like(margin)], dim=-1).unsqueeze(0)
    for name in ("ent", "msp", "gen"):
        assert bool((scores.sample_score(name, samples).diff() < 0).all())


def test_gen_looks_at_the_100_largest_probabilities() -> None:
    p = torch.arange(1.0, 201.0, dtype=torch.float64)
    p = p / p.sum()
    plain = sum((v * (1 - v)) ** 0.1 for v in p.tolist()[100:])
    assert float(scores.gen(p)) == pytest.approx(plain)
    assert float(scores.gen(p, top=2)) == pytest.approx(
        sum((v * (1 - v)) ** 0.1 for v in p.tolist()[-2:])
    )


def test_a_certain_answer_scores_plus_zero() -> None:
    certain = torch.tensor([[1.0, 0.0]])
    for value in (scores.entropy(certain), scores.msp(certain), scores.gen(certain)):
        assert float(value) == 0.0
        assert math.copysign(1.0, float(value)) == 1.0


@PROPERTY
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_yes_no_scores_are_their_formulas(yes: list[float]) -> None:
    no = [1 - p for p in yes]
    plain = -sum(v * math.log(v) for v in (*yes, *no) if v > 0)
    both = torch.tensor([yes], dtype=torch.float64), torch.tensor([no], dtype=torch.float64)
    assert float(scores.bernoulli_entropy(*both)) == pytest.approx(plain, abs=1e-12)
    assert float(scores.bernoulli_msp(*both)) == max(min(p, 1 - p) for p in yes)


def test_an_unknown_score_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown score 'max'; choose from ent, msp, gen, mls"):
        scores.sample_score("max", torch.zeros(1, 1, 2))
