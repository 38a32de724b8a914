"""WeiPer's perturbed last layers, some at a time: at 21,000 classes all of them are too many."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tulip_ood.network.features import Head
from tulip_ood.numerics import random
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["PerturbedHeads"]

_BYTES = 8  # of a float64
_AT_ONCE = 1 << 24  # weights of one block, if it has more than one repeat: 128 MB of float64


class PerturbedHeads:
    """r copies of a last layer, in each of which every class is moved in a random direction.

    They are held between calls if they fit: drawing them takes longer than scoring a batch. Else
    they are drawn again with every call, a layer at a time.

    Args:
        repeats: r.
        distance: δ, how far a class is moved, as a share of the length of its weights.
        seed: Of the directions.
        memory: Bytes that may be held.

    Example:
        >>> heads = PerturbedHeads(repeats=3, distance=0.1, seed=0, memory=1 << 20)
        >>> [len(block.bias) for block in heads.blocks(Head(torch.eye(2), torch.zeros(2)))]
        [6]
    """

    def __init__(self, *, repeats: int, distance: float, seed: int, memory: int) -> None:
        self._repeats, self._distance, self._seed = repeats, distance, seed
        self._memory = memory
        self._held: tuple[Head, list[Head]] | None = None

    def blocks(self, head: Head) -> Iterator[Head]:
        """One or more repeats at a time, as one layer of so many times o outputs, float64.

        Args:
            head: The network's own.
        """
        held = self._held
        if held is not None and all(map(torch.equal, held[0], head)):
            return iter(held[1])
        drawn = self._draw(head)
        if _BYTES * self._repeats * head.weight.numel() > self._memory:
            return drawn
        kept = list(drawn)
        self._held = (head, kept)
        return iter(kept)

    def _draw(self, head: Head) -> Iterator[Head]:
        weight, bias = (part.to(torch.float64) for part in head)
        lengths = weight.norm(dim=1, keepdim=True)
        some = max(1, _AT_ONCE // weight.numel())
        for first in range(0, self._repeats, some):
            repeats = min(some, self._repeats - first)
            moved = self._moved(weight, lengths, first, repeats)
            yield Head(moved, bias.repeat(repeats))

    def _moved(self, weight: Tensor, lengths: Tensor, first: int, repeats: int) -> Tensor:
        """The weights of some repeats, [repeats · o, d]."""
        o, d = weight.shape
        found = torch.empty(repeats * o, d, dtype=torch.float64)
        for part in row_blocks(len(found), d):
            classes = torch.arange(part.start, part.stop) % o
            noise = random.normal(
                (len(classes), d),
                seed=self._seed,
                name="weiper",
                first=(first * o + part.start) * d,
            )
            # Every class by the same share of its weights' length.
            directions = F.normalize(noise.to(torch.float64), dim=-1)
            moved = directions * self._distance * lengths[classes]
            torch.add(weight[classes], moved, out=found[part])
        return found
