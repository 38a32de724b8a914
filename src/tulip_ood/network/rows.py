"""Validation inputs held in memory, one row each, in an order that the loader does not decide.

Rows are sorted by a seeded hash of their content. So a shuffled loader gives the same detector, a
prefix of the rows is a random sample, a split by position is a seeded hash split, and equal inputs
stand side by side.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network import loaders
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.readable import readable
from tulip_ood.wording import counted

__all__ = ["Rows", "collect_rows"]


@dataclass(frozen=True)
class Rows:
    """Inputs of possibly unequal shapes, with their labels.

    Attributes:
        inputs: One structure a row, each with a first dimension of 1, on the CPU.
        labels: [N, …], or None.
        digests: A fingerprint of each row's content.
        seen: How many rows the loader gave; more than are held if memory was short.
        dropped: How many rows were left out because they held NaN or Inf.

    Example:
        >>> import torch
        >>> rows = collect_rows([(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))])
        >>> len(rows), rows.labels.shape
        (3, torch.Size([3]))
    """

    inputs: tuple[Inputs, ...]
    labels: Tensor | None
    digests: tuple[bytes, ...]
    seen: int
    dropped: int

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def dropped_beside(self) -> float:
        """How many were left out for as many as are held: of a sample, its part of `dropped`."""
        return self.dropped * len(self) / max(self.seen - self.dropped, 1)

    def take(self, index: Tensor | Iterable[int]) -> "Rows":
        """Some of the rows, in the order of `index`."""
        chosen = torch.as_tensor(index, dtype=torch.int64)
        return Rows(
            tuple(self.inputs[i] for i in chosen.tolist()),
            None if self.labels is None else self.labels[chosen],
            tuple(self.digests[i] for i in chosen.tolist()),
            self.seen,
            self.dropped,
        )

    def batches(self, size: int) -> Iterator[tuple[Tensor, Inputs]]:
        """(which rows, the rows collated), at most `size` at a time, equal shapes together."""
        groups: dict[Any, list[int]] = {}
        for i, row in enumerate(self.inputs):
            groups.setdefault(structures.signature(row), []).append(i)
        for members in groups.values():
            for first in range(0, len(members), size):
                part = members[first : first + size]
                yield torch.tensor(part), structures.collate([self.inputs[i] for i in part])

    def first(self, n: int) -> Inputs:
        """Up to n rows that can be collated, for a first look at the network."""
        return next(self.batches(n))[1]


def collect_rows(
    loader: Iterable[Any],
    *,
    seed: int = 0,
    memory: int = 2 << 30,
    row_cost: Callable[[Inputs], int] | None = None,
    labelled: bool = True,
    limit: int | None = None,
) -> Rows:
    """Read a loader once and hold its rows, sorted by a seeded hash of their content.

    Beyond `memory`, the rows with the smallest hashes are kept: a seeded uniform sample of the
    whole stream. Rows with NaN or Inf are counted and left out.

    Args:
        loader: Batches (inputs, labels) or mappings with labels; a pair of tensors counts as one
            batch. With labelled=False, labels may be missing and are passed over.
        seed: The seed of the hash.
        memory: Bytes that rows and what is computed from them may take.
        row_cost: Given the first batch, the bytes that will be computed from each row.
        labelled: Whether labels are needed.
        limit: Keep at most so many rows.

    Example:
        >>> import torch
        >>> x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.int64)
        >>> a = collect_rows([(x, y)])
        >>> b = collect_rows([(x[4:], y[4:]), (x[:4], y[:4])])
        >>> a.digests == b.digests
        True
    """
    kept = _Smallest()
    seen = dropped = 0
    capacity = limit
    constants: tuple[Any, ...] | None = None
    for batch in loaders.batches(loader):
        inputs, labels = structures.split_batch(batch) if labelled else _unlabelled(batch)
        inputs = structures.map_tensors(lambda t: t.cpu(), readable(inputs))
        n = structures.count_rows(inputs)
        _check_labels(labels, n)
        if n == 0:
            continue
        constants = _same_constants(structures.constants(inputs), constants)
        if capacity is None:
            each = structures.row_bytes(inputs) + (0 if row_cost is None else row_cost(inputs))
            capacity = max(16, memory // max(1, each))
        finite = structures.finite_rows(inputs)
        for i, digest in enumerate(structures.row_digests(inputs, seed=seed)):
            seen += 1
            if not finite[i]:
                dropped += 1
                continue
            if kept.wants(digest, capacity):
                label = None if labels is None else labels[i].detach().cpu()
                kept.add(digest, seen, structures.clone_row(inputs, i), label, capacity)
    if not kept.heap:
        what = "the loader gave no inputs"
        if dropped:
            what = f"NaN or Inf in all of {counted(dropped, 'input')}"
        if not dropped and isinstance(loader, Iterator):
            what += " (a generator can be read only once: was this one read before?)"
        missing = "there is nothing to fit on" if labelled else "there are no OOD inputs"
        raise InputError(f"{missing}: {what}")
    return kept.rows(seen, dropped)


class _Smallest:
    """The rows with the smallest hashes of a stream, a seeded uniform sample of it."""

    def __init__(self) -> None:
        # (rank, −place in the stream, the row, its label)
        self.heap: list[tuple[int, int, Inputs, Tensor | None]] = []

    @staticmethod
    def _rank(digest: bytes) -> int:
        # Negated: the heap's smallest is then the row with the largest hash, the next to go.
        return -int.from_bytes(digest, "big")

    def wants(self, digest: bytes, capacity: int) -> bool:
        """Whether such a row would stay."""
        return len(self.heap) < capacity or self._rank(digest) > self.heap[0][0]

    def add(
        self, digest: bytes, place: int, row: Inputs, label: Tensor | None, capacity: int
    ) -> None:
        """Take a row in that is wanted, for the one with the largest hash if there is no room."""
        entry = (self._rank(digest), -place, row, label)
        if len(self.heap) < capacity:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heapreplace(self.heap, entry)

    def rows(self, seen: int, dropped: int) -> Rows:
        """All of them, in the order of their hashes."""
        ranked = sorted(self.heap, key=lambda entry: (-entry[0], -entry[1]))
        labels = [entry[3] for entry in ranked]
        return Rows(
            tuple(entry[2] for entry in ranked),
            None if labels[0] is None else _stack(labels),
            tuple((-entry[0]).to_bytes(16, "big") for entry in ranked),
            seen,
            dropped,
        )


def _check_labels(labels: Tensor | None, n: int) -> None:
    if labels is not None and (labels.ndim == 0 or labels.shape[0] != n):
        single = " (from a Dataset, make batches: DataLoader(dataset, batch_size=64))"
        raise InputError(
            f"a batch has {counted(n, 'input')} but labels of shape {list(labels.shape)}: every "
            f"input needs a label{'' if labels.ndim else single}"
        )


def _same_constants(
    found: tuple[Any, ...], before: tuple[Any, ...] | None
) -> tuple[Any, ...] | None:
    """What goes along with the tensors must be the same for all rows: they are put together."""
    if before is None or found == before:
        return found
    old, new = dict(before), dict(found)
    place = next(p for p in {**old, **new} if old.get(p) != new.get(p))
    was, now = (values.get(place, ("", "nothing"))[1] for values in (old, new))
    raise InputError(
        f"the batches differ in {place}, which is no tensor: {was} in one, {now} in another. Such "
        f"a constant must be the same for all inputs; fit a detector for each"
    )


def _unlabelled(batch: Any) -> tuple[Inputs, None]:
    return structures.inputs_only(batch), None


def _stack(labels: list[Tensor | None]) -> Tensor:
    shapes = {tuple(label.shape) for label in labels if label is not None}
    if len(shapes) > 1:
        raise InputError(
            f"labels of different shapes cannot be held together: {sorted(shapes)[:3]}; resize "
            f"dense labels to one size"
        )
    return torch.stack([label for label in labels if label is not None])
