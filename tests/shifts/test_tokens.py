"""Pseudo-OOD for token ids: what is attended to changes, padding on either side stays."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.shifts.tokens import drawn_tokens, shuffled_tokens, spliced_tokens

PROPERTY = settings(deadline=None, max_examples=60)
PAD = 0


def padded(lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    """Rows of different lengths; token 100·row + place, so that each can be followed."""
    width = max(lengths) + 1
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for i, n in enumerate(lengths):
        places = slice(0, n) if side == "right" else slice(width - n, width)
        ids[i, places] = 100 * (i + 1) + torch.arange(n)
        mask[i, places] = True
    return ids, mask


BATCHES = st.tuples(
    st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from(["left", "right"])
)


@PROPERTY
@given(BATCHES, st.integers(0, 1000))
def test_padding_stays_where_it_is(batch: tuple[list[int], str], seed: int) -> None:
    ids, mask = padded(*batch)
    for kind in (shuffled_tokens, spliced_tokens, drawn_tokens):
        before = ids.clone()
        out = kind(ids, mask, seed)
        assert torch.equal(ids, before)  # the input is not changed
        assert bool((out[~mask] == PAD).all())
        assert bool((out[mask] != PAD).all())


@PROPERTY
@given(BATCHES, st.integers(0, 1000))
def test_shuffled_tokens_keep_each_rows_tokens(batch: tuple[list[int], str], seed: int) -> None:
    ids, mask = padded(*batch)
    out = shuffled_tokens(ids, mask, seed)
    for i in range(len(ids)):
        assert Counter(out[i][mask[i]].tolist()) == Counter(ids[i][mask[i]].tolist())


def test_shuffled_rows_have_an_order_of_their_own() -> None:
    ids = torch.arange(1, 31).expand(10, 30)
    out = shuffled_tokens(ids, ids > 0, seed=0)
    assert len({tuple(row) for row in out.tolist()}) == 10


@PROPERTY
@given(BATCHES, st.integers(0, 1000))
def test_spliced_tokens_are_the_first_half_and_anothers_end(
    batch: tuple[list[int], str], seed: int
) -> None:
    """For every row there is one other row whose last tokens stand in its second half."""
    lengths, side = batch
    ids, mask = padded(lengths, side)
    out = spliced_tokens(ids, mask, seed)
    for i, n in enumerate(lengths):
        mine, now = ids[i][mask[i]].tolist(), out[i][mask[i]].tolist()
        candidates = [j for j in range(len(lengths)) if j != i] or [i]
        spliced = []
        for j in candidates:
            theirs = ids[j][mask[j]].tolist()
            k = min(n // 2, len(theirs))
            spliced.append(mine[: n - k] + theirs[len(theirs) - k :])
        assert now in spliced


@pytest.mark.parametrize("side", ["left", "right"])
def test_spliced_rows_are_neither_of_the_two(side: str) -> None:
    """Padding on the left must not turn a row into a copy of another."""
    ids, mask = padded([6, 6, 8, 5], side)
    out = spliced_tokens(ids, mask, seed=0)
    for i in range(4):
        owners = {token // 100 for token in out[i][mask[i]].tolist()}
        assert len(owners) == 2
        assert i + 1 in owners


def test_a_single_row_is_spliced_with_itself() -> None:
    ids, mask = padded([5], "right")
    assert torch.equal(spliced_tokens(ids, mask, seed=0), ids)


def test_drawn_tokens_have_the_frequencies_of_all_rows() -> None:
    ids = torch.tensor([[1, 2, 2, 3, 3, 3, 0, 0]]).repeat(500, 1)
    out = drawn_tokens(ids, ids > 0, seed=0)
    counts = torch.bincount(out[out > 0], minlength=4)[1:] / 3000
    torch.testing.assert_close(counts, torch.tensor([1 / 6, 2 / 6, 3 / 6]), atol=0.04, rtol=0)


def test_rows_without_a_single_token_are_left_alone() -> None:
    ids, mask = torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.bool)
    for kind in (shuffled_tokens, spliced_tokens, drawn_tokens):
        assert torch.equal(kind(ids, mask, 0), ids)
