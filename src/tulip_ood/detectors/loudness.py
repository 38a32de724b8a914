"""How loud every opinion of `Auto` may be: as loud as the order of the network's errors allows.

What makes a score find more OOD inputs mostly makes it order the network's own errors worse, and by
how much differs from network to network: noise on the weights lowers AURC by a fifth on one, and
raises it by a fifth on another. How much, held-out validation data can tell, as their right answers
are known. So every opinion comes in a few voices, from quiet to loud, and gets the loudest one with
which those errors are still ordered as well as by entropy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.numerics.metrics import aurc
from tulip_ood.numerics.quantiles import quantiles

__all__ = ["CLEARLY", "COSTS_LITTLE", "FEW_ERRORS", "SILENT", "Voice", "loudest", "voices"]

CLEARLY = 1.0  # half of q84 − q16 of the validation data above their median
FEW_ERRORS = 5  # fewer say nothing of an order
COSTS_LITTLE = 0.01  # of AURC, which an opinion may cost on top: errors are few, their order rough


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


def loudest(
    said: Mapping[str, Sequence[Tensor]], plain: Tensor, wrong: Tensor
) -> dict[str, int] | None:
    """Which of its voices every opinion gets, one after another.

    Args:
        said: What each opinion adds to the score of held-out inputs [N], by its name: the quietest
            voice first. Before its turn an opinion has the quietest.
        plain: The entropy of the same inputs, whose order is the measure.
        wrong: 1 where the network's answer is wrong, else 0.

    Returns:
        The numbers of the voices; None where there are too few errors to tell.

    Example:
        >>> import torch
        >>> wrong, entropy = torch.zeros(100), torch.linspace(0, 1, 100)
        >>> wrong[90:] = 1
        >>> silent = torch.zeros(100)
        >>> good, bad = torch.linspace(0, 9, 100), torch.linspace(90, 0, 100)
        >>> loudest({"order": [entropy], "a": [silent, good], "b": [silent, bad]}, entropy, wrong)
        {'order': 0, 'a': 1, 'b': 0}
    """
    if wrong.sum() < FEW_ERRORS:
        return None
    chosen = dict.fromkeys(said, 0)
    entropys = aurc(plain, wrong)

    def order(with_: Mapping[str, int]) -> float:
        total = sum(said[name][voice] for name, voice in with_.items())
        assert isinstance(total, Tensor)
        return aurc(total, wrong)

    for name, voices in said.items():
        allowed = max(entropys, (1 + COSTS_LITTLE) * order(chosen))
        for voice in reversed(range(1, len(voices))):
            if order({**chosen, name: voice}) <= allowed:
                chosen[name] = voice
                break
    return chosen
