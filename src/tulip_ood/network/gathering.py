"""Inputs go through a network in batches, and what comes out is put in its place again.

What plain and fast passes share.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.rows import Rows

__all__ = ["Gathered", "at_positions", "batches_of", "is_out_of_memory"]


class Gathered:
    """Rows that come batch by batch, in any order, put in their places.

    Args:
        n: How many there will be.
        what: What they are, for a complaint.
        device: Where they are kept; on the CPU by default.
        passes: So many rows for every input, if there are several passes.

    Attributes:
        whole: All rows, [N, …] or [passes, N, …], or None before the first came; half precision is
            kept as float32.

    Example:
        >>> rows = Gathered(2, "outputs")
        >>> rows.put(torch.tensor([1]), torch.ones(1, 3))
        >>> rows.put(torch.tensor([0]), torch.zeros(1, 3))
        >>> rows.whole
        tensor([[0., 0., 0.],
                [1., 1., 1.]])
    """

    def __init__(
        self, n: int, what: str, device: torch.device | None = None, passes: int | None = None
    ) -> None:
        self._what, self._device = what, device or torch.device("cpu")
        self._size = (n,) if passes is None else (passes, n)
        self.whole: Tensor | None = None

    def put(self, index: Tensor, part: Tensor, i: int | None = None) -> None:
        """Put some rows in the places `index`, of pass i or of all; a batch of all is in order."""
        part = part.detach()
        several = len(self._size) - (i is not None) > 1
        row = part.shape[1 + several :]
        if self.whole is None:
            half = part.dtype in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half else part.dtype
            self.whole = torch.empty((*self._size, *row), dtype=dtype, device=self._device)
        known = self.whole.shape[len(self._size) :]
        if row != known:
            raise InputError(
                f"the network's {self._what} differ in shape between inputs: {list(row)} and "
                f"{list(known)}; score inputs of one size at a time"
            )
        here = self.whole if i is None else self.whole[i]
        if len(index) == self._size[-1]:
            here.copy_(part)
        else:
            places = index.to(self._device)
            where = (slice(None), places) if several else (places,)
            here[where] = part.to(self._device, here.dtype)


def batches_of(source: Rows | Inputs, size: int) -> Iterator[tuple[Tensor, Inputs]]:
    """Up to `size` inputs at a time, with their places.

    Example:
        >>> [index.tolist() for index, _ in batches_of(torch.zeros(3, 4), 2)]
        [[0, 1], [2]]
    """
    if isinstance(source, Rows):
        yield from source.batches(size)
        return
    first = 0
    for piece in structures.chunks(source, size):
        n = structures.count_rows(piece)
        yield torch.arange(first, first + n), piece
        first += n


def at_positions(dense: Tensor, where: Tensor) -> Tensor:
    """[n, positions…, o] → [n, P, o] at the given places of the flattened positions.

    Example:
        >>> at_positions(torch.tensor([[[7], [8]]]), torch.tensor([[0.0, 0.9]])).flatten()
        tensor([7, 8])
    """
    flat = dense.flatten(1, -2)
    index = (where.to(flat.device) * flat.shape[1]).long().clamp_max(flat.shape[1] - 1)
    return flat.gather(1, index.unsqueeze(-1).expand(-1, -1, flat.shape[-1]))


def is_out_of_memory(error: Exception) -> bool:
    """Whether fewer inputs at a time may help; the CPU's allocator raises a plain error.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
        True
    """
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
