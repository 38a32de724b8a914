"""The counter-based generator: known answers, distributions, independence, and no side effects."""

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tulip_ood.errors import InputError
from tulip_ood.numerics import random
from tulip_ood.numerics.random import integers, normal, permutation, philox, uniform

PROPERTY = settings(deadline=None, max_examples=60)
MASK = 0xFFFFFFFF

# kat_vectors of the Random123 distribution, philox4x32 with 10 rounds: counter, key, answer.
KNOWN = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's whole numbers, from Salmon et al. (2011)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(c0 * 0xD2511F53, 1 << 32)
        high1, low1 = divmod(c2 * 0xCD9E8D57, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def ours(counter: list[int], key: list[int]) -> list[int]:
    tensors = tuple(torch.tensor([word]) for word in counter)
    return [int(word) for word in philox(tensors, (key[0], key[1]))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers_of_random123(counter: str, key: str, answer: str) -> None:
    assert ours(words(counter), words(key)) == words(answer)
    assert plain_philox(words(counter), words(key)) == words(answer)


@PROPERTY
@given(*[st.lists(st.integers(0, MASK), min_size=n, max_size=n) for n in (4, 2)])
def test_philox_equals_whole_number_arithmetic(counter: list[int], key: list[int]) -> None:
    assert ours(counter, key) == plain_philox(counter, key)


def test_streams_are_philox_of_seed_name_index_and_position() -> None:
    """The stream that detector files rely on, written out: it must never change."""
    digest = hashlib.blake2b(b"7/layer.weight", digest_size=8).digest()
    key = [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")]
    plain = [w for block in range(3) for w in plain_philox([block, 0, 5, 0], key)]
    known = {"seed": 7, "name": "layer.weight", "index": 5}
    assert integers((10,), 1 << 31, **known).tolist() == [w >> 1 for w in plain[:10]]
    assert uniform((10,), **known).tolist() == [(w >> 8) / 2**24 for w in plain[:10]]
    expected = []
    for a, b, c, d in (plain[i : i + 4] for i in (0, 4, 8)):
        r1, r2, t1, t2 = ((w + 0.5) / 2**32 for w in (a, b, c, d))
        radius = [math.sqrt(-2 * math.log(r)) for r in (r1, r2)]
        angle = [2 * math.pi * t for t in (t1, t2)]
        expected += [r * math.cos(t) for r, t in zip(radius, angle, strict=True)]
        expected += [r * math.sin(t) for r, t in zip(radius, angle, strict=True)]
    torch.testing.assert_close(normal((10,), **known), torch.tensor(expected[:10]))


def test_normal_numbers_of_a_seed_are_fixed() -> None:
    drawn = normal((4,), seed=0, name="fc.weight")
    assert drawn.dtype == torch.float32
    expected = torch.tensor([-0.56571339, -1.26568786, -0.28030276, 0.09185285])
    torch.testing.assert_close(drawn, expected, rtol=1e-6, atol=0)


def test_a_counter_beyond_32_bits_goes_on() -> None:
    """Block 2^32 is not block 0 again."""
    device = torch.device("cpu")
    late = random._words(1 << 32, (1 << 32) + 1, 0, (1, 2), device)
    assert late.flatten().tolist() == plain_philox([0, 1, 0, 0], [1, 2])


# -------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize(("seed", "name"), [(0, "a"), (1, "conv1.weight"), (5, ""), (2**40, "ü")])
def test_normal_numbers_are_normal(seed: int, name: str) -> None:
    """Kolmogorov–Smirnov, and the first four moments within their errors, of 200,000 numbers."""
    x = normal((200_000,), seed=seed, name=name).double().numpy()
    assert stats.kstest(x, "norm").pvalue > 1e-3
    n = len(x)
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs((x**2).mean() - 1) < 4 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert 4 < np.abs(x).max() < 6.8  # tails are there; 6.77 is the largest that can be drawn


def test_the_four_numbers_of_a_block_are_independent() -> None:
    """Box–Muller makes pairs: neither they nor their squares may be correlated."""
    x = normal((400_000,), seed=3, name="blocks").double().reshape(-1, 4)
    for values in (x, x.square()):
        correlation = torch.corrcoef(values.T) - torch.eye(4, dtype=torch.float64)
        assert float(correlation.abs().max()) < 4 / math.sqrt(len(x))


def test_uniform_numbers_are_uniform() -> None:
    x = uniform((200_000,), seed=0, name="u")
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    assert stats.kstest(x.double().numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("high", [1, 2, 7, 100])
def test_integers_are_uniform(high: int) -> None:
    drawn = integers((50_000,), high, seed=0, name="i")
    counts = torch.bincount(drawn, minlength=high)
    assert len(counts) == high
    assert high == 1 or stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_permutations_are_uniform() -> None:
    """All 24 orders of four things, equally often over indices."""
    orders = [tuple(permutation(4, seed=0, name="p", index=i).tolist()) for i in range(4800)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


# --------------------------------------------------------------------------------- independence


def test_other_names_indices_and_seeds_are_other_numbers() -> None:
    """20 streams that differ in one thing each: uncorrelated, and no number in common."""
    n = 20_000
    streams = [
        *(normal((n,), seed=0, name=f"layer{k}.weight") for k in range(5)),
        *(normal((n,), seed=0, name="layer0.weight", index=k) for k in range(1, 6)),
        *(normal((n,), seed=k, name="layer0.weight") for k in range(1, 6)),
        *(normal((n,), seed=2**62 + k, name="layer0.weight") for k in range(1, 6)),
    ]
    table = torch.stack(streams).double()
    correlation = torch.corrcoef(table) - torch.eye(len(streams), dtype=torch.float64)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(n)
    assert len(np.unique(table.numpy(), axis=0)) == len(streams)


def test_seed_and_name_cannot_be_confused() -> None:
    """(1, "2/w") and (12, "w") are different streams."""
    assert not torch.equal(normal((8,), seed=1, name="2/w"), normal((8,), seed=12, name="w"))
    assert not torch.equal(normal((8,), seed=1, name="1/w"), normal((8,), seed=1, name="w"))


# ----------------------------------------------------------------------------------- properties


@PROPERTY
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9))
def test_a_longer_draw_begins_with_the_shorter_one(n: int, more: int, index: int) -> None:
    known = {"seed": 3, "name": "w", "index": index}
    for draw in (normal, uniform):
        assert torch.equal(draw((n + more,), **known)[:n], draw((n,), **known))
    longer, shorter = integers((n + more,), 9, **known), integers((n,), 9, **known)
    assert torch.equal(longer[:n], shorter)


@PROPERTY
@given(st.lists(st.integers(0, 5), max_size=4))
def test_the_shape_only_folds_the_stream(shape: list[int]) -> None:
    flat = normal((math.prod(shape),), seed=0, name="w")
    folded = normal(tuple(shape), seed=0, name="w")
    assert folded.shape == tuple(shape)
    assert torch.equal(folded.flatten(), flat)


def test_the_pieces_in_which_a_stream_is_made_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"seed": 0, "name": "w", "index": 2}
    whole = normal((1001,), **known), uniform((1001,), **known), permutation(1001, **known)
    monkeypatch.setattr(random, "_BLOCKS_CPU", 3)
    pieces = normal((1001,), **known), uniform((1001,), **known), permutation(1001, **known)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@PROPERTY
@given(st.integers(0, 200), st.integers(0, 2**31))
def test_a_permutation_has_every_place_once(n: int, seed: int) -> None:
    assert sorted(permutation(n, seed=seed, name="p").tolist()) == list(range(n))


def test_torchs_own_random_state_is_neither_read_nor_changed() -> None:
    before = torch.random.get_rng_state()
    drawn = [normal((99,), seed=0, name="w"), permutation(9, seed=0, name="w")]
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(123)
        again = [normal((99,), seed=0, name="w"), permutation(9, seed=0, name="w")]
    assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(InputError, match="n must not be negative, got -3"):
        permutation(-3, seed=0, name="p")
