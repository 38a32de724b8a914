"""Has the stream of inputs drifted? A conformal test martingale, valid however often one looks.

The p-values that a detector answers with all use one calibration set: given that set they are
independent, but not quite uniform, and a test that runs long enough would "find" just this. Here
every input is ranked among the calibration scores *and all earlier inputs*, ties broken at random.
If all of them are exchangeable, these p-values are independent and uniform, exactly and for ever
(Vovk), and a capital that bets against them is a martingale: by Ville's inequality it ever reaches
1/α with probability at most α.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics import random

__all__ = ["log_capital", "online_p_values"]

_BLOCK = 256
# Exponents e of the densities e·p^(e−1), which grow towards 0 (odder inputs), and of their mirror
# images.
_POWERS = (0.3, 0.5, 0.75)
# How often capital moves from one bet to all others: for ever, or after a change in the middle.
_JUMPS = (1e-4, 1e-3, 1e-2)


def online_p_values(calibration: Tensor, scores: Tensor, *, seed: int = 0) -> Tensor:
    """Smoothed conformal p-values: each score among the calibration scores and all before it.

    Independent and uniform on [0, 1] if calibration scores and scores are exchangeable; small
    where a score is higher than those seen so far. A score of +inf (no score) is the oddest.

    Args:
        calibration: Held-out ID scores [n], in any order.
        scores: New scores in the order in which they came, [T].
        seed: Decides how ties are broken.

    Example:
        >>> import torch
        >>> p = online_p_values(torch.arange(9.0), torch.tensor([100.0, 100.0]))
        >>> bool(p[0] < 1 / 10), bool(p[1] < 2 / 11)
        (True, True)
    """
    scores = scores.to(torch.float64)
    if bool(scores.isnan().any()) or bool(calibration.isnan().any()):
        raise InputError("scores must not be NaN: an input without a score counts as +inf")
    luck = random.uniform((len(scores),), seed=seed, name="monitor/ties").to(torch.float64)
    luck += 2.0**-25  # the middle of steps of 2^-24: never 0, on which one could win all
    found = torch.empty(len(scores), dtype=torch.float64)
    seen = [calibration.to(torch.float64).sort().values]
    for first in range(0, len(scores), _BLOCK):
        block = scores[first : first + _BLOCK].contiguous()
        below = sum(torch.searchsorted(run, block, right=False) for run in seen)
        up_to = sum(torch.searchsorted(run, block, right=True) for run in seen)
        earlier = torch.ones(len(block), len(block), dtype=torch.bool).tril(-1)
        before = len(calibration) + first
        above = before - up_to + ((block > block[:, None]) & earlier).sum(dim=1)
        equal = up_to - below + ((block == block[:, None]) & earlier).sum(dim=1)
        count = before + torch.arange(len(block)) + 1.0
        share = luck[first : first + len(block)] * (equal + 1.0)
        found[first : first + len(block)] = (above + share) / count
        _merge(seen, block)
    return found


def _merge(runs: list[Tensor], block: Tensor) -> None:
    """Add values to sorted runs, each longer than those after it: of n values there are log n.

    One run alone would be sorted again for every block, and a long log take its length squared.
    """
    runs.append(block.sort().values)
    while len(runs) > 1 and len(runs[-1]) >= len(runs[-2]):
        runs[-2:] = [torch.cat(runs[-2:]).sort().values]


def log_capital(p_values: Tensor) -> Tensor:
    """The natural logarithm of a bettor's capital after each p-value, starting from 1.

    The bettor spreads the capital over densities that gain from odder inputs, from plainer ones
    and from too many at both ends or in the middle, and moves a little of it from one to the
    others all the time (Vovk's jumper, at three rates), so as to notice a change after a long
    quiet time too. If the p-values are independent and uniform, the capital is a martingale:
    P(it ever reaches 1/α) ≤ α.

    Args:
        p_values: [..., T], in the order in which they came.

    Example:
        >>> import torch
        >>> drifted = log_capital(torch.full((100,), 0.01))
        >>> bool(drifted[-1] > math.log(1e6))
        True
    """
    if not bool(((p_values >= 0) & (p_values <= 1)).all()):
        raise InputError("p-values lie between 0 and 1")
    if not p_values.numel():
        return torch.empty_like(p_values, dtype=torch.float64)
    gains = torch.cat(list(_gains(p_values.to(torch.float64))), dim=-1)
    # Each rate starts with an equal part; their sum is the capital.
    log_parts = gains.log_().cumsum(dim=-1) - math.log(len(_JUMPS))
    return log_parts.logsumexp(dim=-2)


def _gains(p_values: Tensor) -> Iterator[Tensor]:
    """What each p-value multiplies the capital by, [..., rates, T], a block at a time.

    In NumPy: so many steps on so few numbers take a quarter of the time there.
    """
    keep = 1.0 - np.array(_JUMPS)[:, None]
    kinds = _densities(p_values[..., :1]).shape[-1]
    move = np.array(_JUMPS)[:, None] / kinds
    held = np.full((*p_values.shape[:-1], len(_JUMPS), kinds), 1.0 / kinds)
    for block in p_values.split(_BLOCK, dim=-1):
        bets = _densities(block).numpy()
        gains = np.empty((*held.shape[:-1], block.shape[-1]))
        for t in range(block.shape[-1]):
            held *= bets[..., None, t, :]
            total = held.sum(axis=-1, keepdims=True)
            held /= total
            held *= keep
            held += move
            gains[..., t] = total[..., 0]
        yield torch.from_numpy(gains)


def _densities(p: Tensor) -> Tensor:
    """What a stake of 1 on each density returns, [..., T, kinds]; the first bets nothing."""
    p = p.clamp(1e-16, 1.0 - 1e-16)
    columns = [torch.ones_like(p)]
    for power in _POWERS:
        columns += [power * p ** (power - 1), power * (1 - p) ** (power - 1)]
    edge = (p - 0.5).abs() * 2
    columns += [0.5 + edge, 1.5 - edge]  # too many at both ends, or in the middle
    return torch.stack(columns, dim=-1)
