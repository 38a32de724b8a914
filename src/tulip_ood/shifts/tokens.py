"""Pseudo-OOD for token ids. Places that the attention mask switches off stay as they are."""

from torch import Tensor

from tulip_ood.numerics.random import integers, permutation
from tulip_ood.shifts.average import partner

__all__ = ["drawn_tokens", "shuffled_tokens", "spliced_tokens"]


def shuffled_tokens(ids: Tensor, mask: Tensor, seed: int) -> Tensor:
    """The tokens of every row in a random order.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[5, 6, 7, 0]])
        >>> out = shuffled_tokens(ids, ids > 0, seed=0)
        >>> sorted(out[0, :3].tolist()), int(out[0, 3])
        ([5, 6, 7], 0)
    """
    out = ids.clone()
    for i in range(len(ids)):
        places = mask[i].nonzero().squeeze(1)
        order = permutation(len(places), seed=seed, name="shuffled_tokens", index=i)
        out[i, places] = ids[i, places[order]]
    return out


def spliced_tokens(ids: Tensor, mask: Tensor, seed: int) -> Tensor:
    """The first half of one row and the end of another.

    Counted along the tokens that are attended to: rows may be unequally long, and padding may be
    on either side.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 1, 1], [2, 2, 2, 2]])
        >>> spliced_tokens(ids, ids > 0, seed=0).tolist()
        [[1, 1, 2, 2], [2, 2, 1, 1]]
    """
    out = ids.clone()
    for i, other in enumerate(partner(len(ids), seed, "spliced_tokens").tolist()):
        places, theirs = mask[i].nonzero().squeeze(1), ids[other, mask[other]]
        k = min(len(places) // 2, len(theirs))
        out[i, places[len(places) - k :]] = theirs[len(theirs) - k :]
    return out


def drawn_tokens(ids: Tensor, mask: Tensor, seed: int) -> Tensor:
    """Every token drawn from all tokens of all rows: the right words, no sentence.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[3, 4], [5, 6]])
        >>> set(drawn_tokens(ids, ids > 0, seed=0).flatten().tolist()) <= {3, 4, 5, 6}
        True
    """
    pool, out = ids[mask], ids.clone()
    out[mask] = pool[integers((len(pool),), len(pool), seed=seed, name="drawn_tokens")]
    return out
