"""How loud every opinion of `Auto` is: quieter where the network's own errors speak against it.

What makes a score find more OOD inputs mostly makes it order the network's own errors worse, and by
how much differs from network to network: noise on the weights lowers AURC by a fifth on one, and
raises it by a fifth on another. How much, held-out validation data can tell, as their right answers
are known, and no better than their few errors allow. So every opinion comes in a few voices, from
quiet to loud. It has its usual one unless those errors speak against it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.numerics.metrics import aurc
from tulip_ood.numerics.quantiles import quantiles

__all__ = ["CLEARLY", "FEW_ERRORS", "SILENT", "Voice", "quietened", "voices"]

CLEARLY = 1.0  # half of q84 − q16 of the validation data above their median
FEW_ERRORS = 5  # fewer say nothing of an order
PARTS = 20  # of the held-out inputs: how much hangs on each of them is their doubt


@dataclass(frozen=True)
class Voice:
    """What an opinion z adds to a score: slope · max(0, z − bar).

    Example:
        >>> import torch
        >>> Voice(2.0, 1.0).of(torch.tensor([0.0, 1.5]))
        tensor([0., 1.])
    """

    slope: float
    bar: float

    def of(self, z: Tensor) -> Tensor:
        """From what is said of every input, centred and scaled, to what it adds."""
        return self.slope * (z - self.bar).clamp_min(0.0) if self.slope else torch.zeros_like(z)


SILENT = Voice(0.0, 0.0)


def voices(
    asked: Sequence[tuple[float, float | None]], mild: Tensor | None, least: float = CLEARLY
) -> list[Voice]:
    """The voices of an opinion, from what it says of mildly changed inputs.

    Args:
        asked: For each voice its slope, and the share of `mild` that its bar is above; None for a
            bar of 0.
        mild: What it says of mildly changed inputs that are still answered rightly; None where
            inputs cannot be changed so, and `CLEARLY` is the bar.
        least: No other bar is lower.

    Example:
        >>> import torch
        >>> voices([(2.0, 0.75), (1.0, None)], torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]))
        [Voice(slope=2.0, bar=3.0), Voice(slope=1.0, bar=0.0)]
    """
    found = []
    for slope, share in asked:
        if share is None:
            found.append(Voice(slope, 0.0))
        elif mild is None:
            found.append(Voice(slope, CLEARLY))
        elif len(known := mild[mild.isfinite()]):
            found.append(Voice(slope, max(least, quantiles(known, (share,))[0])))
        else:
            found.append(SILENT)  # nothing is more than they say
    return found


def quietened(said: Mapping[str, Sequence[Tensor]], plain: Tensor, wrong: Tensor) -> dict[str, int]:
    """Which of its voices every opinion gets.

    All begin with the loudest, the usual one. As long as the held-out errors show, by a standard
    error, that they are ordered worse than by entropy, one opinion is made quieter: by the least
    change that is enough, or else by the one that helps most. Then each in turn goes back towards
    its usual voice, as far as that shows nothing.

    Args:
        said: What each opinion adds to the score of held-out inputs [N], by its name: the quietest
            voice first.
        plain: The entropy of the same inputs.
        wrong: 1 where the network's answer is wrong, else 0.

    Returns:
        The numbers of the voices: the usual ones where there are too few errors to tell.

    Example:
        >>> import torch
        >>> wrong, entropy = torch.zeros(100), torch.linspace(0, 1, 100)
        >>> wrong[90:] = 1
        >>> silent = torch.zeros(100)
        >>> good, bad = torch.linspace(0, 9, 100), torch.linspace(90, 0, 100)
        >>> said = {"order": [entropy], "a": [silent, good], "b": [silent, bad]}
        >>> quietened(said, entropy, wrong)
        {'order': 0, 'a': 1, 'b': 0}
    """
    chosen = {name: len(voices) - 1 for name, voices in said.items()}
    if wrong.sum() < FEW_ERRORS:
        return chosen
    order = _Order(said, plain, wrong)
    while order.shows(chosen) and any(chosen.values()):
        chosen = _quieter(chosen, order)
    # What was made quieter on the way may not have been to blame.
    for name, voices in said.items():
        while chosen[name] < len(voices) - 1:
            louder = {**chosen, name: chosen[name] + 1}
            if order.shows(louder):
                break
            chosen = louder
    return chosen


def _quieter(chosen: dict[str, int], order: "_Order") -> dict[str, int]:
    tried = [{**chosen, name: voice} for name, number in chosen.items() for voice in range(number)]
    enough = [one for one in tried if not order.shows(one)]
    if enough:
        return max(enough, key=lambda one: (sum(one.values()), -order.cost(one)))
    # What costs nothing stays: of changes that help alike, the least.
    return min(tried, key=lambda one: (order.cost(one), -sum(one.values())))


class _Order:
    """How held-out errors are ordered by the sum of some voices, beside entropy."""

    def __init__(self, said: Mapping[str, Sequence[Tensor]], plain: Tensor, wrong: Tensor) -> None:
        self._said, self._wrong = said, wrong.cpu()
        part = torch.arange(len(wrong)) % PARTS
        self._rows = [
            torch.arange(len(wrong)),
            *((part != p).nonzero().squeeze(1) for p in range(PARTS)),
        ]
        self._plain = self._aurcs(plain)
        self._known: dict[tuple[int, ...], Tensor] = {}

    def _aurcs(self, scores: Tensor) -> Tensor:
        """Of all inputs, and of all but each part of them."""
        scores = scores.cpu()
        each = [aurc(scores[rows], self._wrong[rows]) for rows in self._rows]
        return torch.tensor(each, dtype=torch.float64).clamp_min(1e-300)

    def _costs(self, chosen: Mapping[str, int]) -> Tensor:
        key = tuple(chosen[name] for name in self._said)
        if key not in self._known:
            added = [
                voices[number] for voices, number in zip(self._said.values(), key, strict=True)
            ]
            self._known[key] = self._aurcs(torch.stack(added).sum(dim=0)) / self._plain - 1
        return self._known[key]

    def cost(self, chosen: Mapping[str, int]) -> float:
        """By how much AURC is above entropy's, as a share of it."""
        return float(self._costs(chosen)[0])

    def shows(self, chosen: Mapping[str, int]) -> bool:
        """That errors are ordered worse than by entropy."""
        return self.cost(chosen) > self.doubt(chosen)

    def doubt(self, chosen: Mapping[str, int]) -> float:
        """The standard error of `cost`: the jackknife's, leaving out one part of the inputs."""
        each = self._costs(chosen)[1:]
        return math.sqrt(float((each - each.mean()).square().sum()) * (PARTS - 1) / PARTS)
