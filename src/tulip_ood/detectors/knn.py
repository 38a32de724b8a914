"""Distance to the K-th nearest neighbour (Sun et al., ICML 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.mahalanobis import FeatureDetector, FeatureLearner, unit
from tulip_ood.errors import InputError
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.wording import counted

__all__ = ["KNN", "Bank", "near_rows"]

PUBLISHED_ROWS = 50_000  # the bank that the published K are for: CIFAR's training set
_QUERIES, _ROWS = 256, 1 << 16  # of one block of products: 64 MB of float32
# Numbers of neighbours looked at again in float64: 32 MB; a GPU has more, and many starts cost it.
_GATHERED, _GATHERED_ON_GPU = 1 << 22, 1 << 25
# Large enough that the allocator gives each block back to the system by itself.
_BLOCK_BYTES = 64 << 20
_ON_DEVICE_BYTES = 2 << 30  # a bank that stays on the device; a larger one goes there in blocks
_SLACK = 32  # neighbours on either side of the one asked for that are looked at again


@dataclass(frozen=True)
class Bank:
    """Normalised features that neighbours are looked for in.

    Attributes:
        rows: [N, d], float32, each of norm 1.
        scaled: Whether K is scaled to the size of the bank: it holds validation data.

    Example:
        >>> Bank(torch.eye(500), scaled=True).neighbour(200)
        2
        >>> Bank(torch.eye(500), scaled=False).neighbour(200)
        200
    """

    rows: Tensor
    scaled: bool = False

    def neighbour(self, k: int) -> int:
        """Which neighbour counts; refuses where there are not so many."""
        n = len(self.rows)
        if self.scaled:
            return min(max(round(k * n / PUBLISHED_ROWS), 1), k, n)
        if k > n:
            raise InputError(f"k = {k}, but only {counted(n, 'input')} can be neighbours")
        return k


def near_rows(
    bank: Tensor,
    queries: Tensor,
    k: int,
    *,
    first: int = 0,
    searched: Tensor | None = None,
    device: torch.device | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a bank with the largest products with each query, some queries at a time.

    Found in float32 and in blocks; a few more than k are given, in float64. What is computed from
    them then does not depend on how queries were batched.

    Args:
        bank: [N, d], float32.
        queries: [n, d].
        k: How many are wanted.
        first: Leave out this many of the nearest.
        searched: The same bank, on the device already.
        device: What searches, block by block; by default where `bank` is.

    Yields:
        Which queries, and their rows [m, k − first or more, d].

    Example:
        >>> (where, rows), = near_rows(torch.eye(3), torch.tensor([[0.0, 2.0, 0.0]]), 1)
        >>> where, rows.shape
        (slice(0, 1, None), torch.Size([1, 3, 3]))
    """
    wanted = min(k + _SLACK, len(bank))
    searched = bank if searched is None else searched
    at_once, gathered = _QUERIES, _GATHERED
    if bank.device.type == "cuda":
        at_once, gathered = max(_QUERIES, _QUERIES * _ROWS // len(bank)), _GATHERED_ON_GPU
    step = max(1, gathered // ((wanted - first) * bank.shape[1]))
    for begin in range(0, len(queries), at_once):
        some_queries = queries[begin : begin + at_once].to(device or bank.device, torch.float32)
        index = _nearest(searched, some_queries, wanted)[:, first:].to(bank.device)
        for start in range(0, len(index), step):
            some = index[start : start + step]
            where = slice(begin + start, begin + start + len(some))
            yield where, bank[some].to(torch.float64)


def _nearest(bank: Tensor, queries: Tensor, k: int) -> Tensor:
    """Indices [n, k] of the rows with the largest products, the largest first."""
    best = queries.new_empty((len(queries), 0))
    index = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
    # Autocast would multiply in half precision, TF32 is not much better.
    with torch.autocast(queries.device.type, enabled=False), full_precision():
        for first in range(0, len(bank), _ROWS):
            products = queries @ bank[first : first + _ROWS].to(queries.device).T
            found = products.topk(min(k, products.shape[1]), dim=1)
            best = torch.cat([best, found.values], dim=1)
            index = torch.cat([index, found.indices + first], dim=1)
            chosen = best.topk(min(k, best.shape[1]), dim=1)
            best, index = chosen.values, index.gather(1, chosen.indices)
    return index


class KNN(FeatureDetector):
    """The squared distance of normalised features to the K-th nearest ones of the data.

    K is meant for a training set (`fit(val, train=train)`), and is then taken as it is. Learned
    from N validation inputs, the neighbour K · N / 50,000 is used, at least the nearest: the
    published K are for 50,000 images, and as many neighbours of a few hundred would reach into
    other classes (of 500 images of 100 classes, only five share a class).

    Inputs whose features are all zero have no direction: they are nobody's neighbours.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        k: K.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = KNN(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "knn"
    state_class: ClassVar[type] = Bank
    tasks: ClassVar[tuple[str, ...]] = ("classification", "multilabel", "binary", "regression")
    search = {"k": (50, 100, 200, 500, 1000)}  # noqa: RUF012 – never changed

    def __init__(self, model: nn.Module | Network, *, k: int = 50, **common: Any) -> None:
        super().__init__(model, **common)
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        self.k = k
        # A bank and its copy on a device; shared with the views that each call works on.
        self._placed: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def _searched(self, rows: Tensor) -> Tensor:
        """The bank where the network runs, if there is room for all of it."""
        device = self.network.device
        if device.type == "cpu" or rows.numel() * rows.element_size() > _ON_DEVICE_BYTES:
            return rows
        placed = self._placed.get(device)
        if placed is None or placed[0] is not rows:
            placed = (rows, rows.to(device))
            self._placed.clear()
            self._placed[device] = placed
        return placed[1]

    def _scores_on_device(self) -> bool:
        return True

    def _learner(self) -> Learner:
        return _BankLearner()

    def _learn(self, passes: Passes) -> Bank:
        # Training data comes through the learner; what comes here is validation data.
        bank: Bank = super()._learn(passes)
        return replace(bank, scaled=True)

    def _of_features(self, state: Bank, features: Tensor, passes: Passes) -> Tensor:
        k = state.neighbour(self.k)
        queries = unit(features)
        scores = torch.empty(len(queries), dtype=torch.float64, device=queries.device)
        # Rounding moves a neighbour by a few ranks: those far nearer need not be looked at again.
        skipped = max(0, k - 1 - _SLACK)
        searched = self._searched(state.rows)
        bank = searched if searched.device == queries.device else state.rows
        found = near_rows(
            bank, queries, k, first=skipped, searched=searched, device=self.network.device
        )
        for where, rows in found:
            distances = (rows - queries[where].to(rows.device).unsqueeze(1)).square().sum(dim=2)
            scores[where] = distances.kthvalue(k - skipped, dim=1).values.to(scores.device)
        return scores

    def _report_lines(self) -> list[str]:
        state: Bank = self._state
        used = state.neighbour(self.k)
        why = f" (k = {self.k} of {PUBLISHED_ROWS}, scaled)" if state.scaled else ""
        return [f"distance to neighbour {used} of {len(state.rows)} inputs{why}"]


class _BankLearner(FeatureLearner):
    """Keeps every row once: a million of 2,048 features are 10 GB, and no second copy is made."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[Tensor] = []
        self._last = 0  # rows in the last block

    def _add(self, features: Tensor, passes: Passes) -> None:
        rows = unit(features[features.square().sum(dim=1) > 0]).to(torch.float32)
        while len(rows):
            if not self._blocks or self._last == len(self._blocks[-1]):
                size = max(1, _BLOCK_BYTES // (4 * rows.shape[1]))
                self._blocks.append(torch.empty((size, rows.shape[1]), dtype=torch.float32))
                self._last = 0
            taken = min(len(rows), len(self._blocks[-1]) - self._last)
            self._blocks[-1][self._last : self._last + taken] = rows[:taken]
            self._last += taken
            rows = rows[taken:]

    def _finish(self) -> Bank:
        if not self._blocks:
            raise InputError("there are no neighbours: all penultimate features are zero")
        self._blocks[-1] = self._blocks[-1][: self._last]
        n = sum(map(len, self._blocks))
        whole = torch.empty((n, self._blocks[0].shape[1]), dtype=torch.float32)
        filled = 0
        while self._blocks:  # memory goes back block by block while the bank fills
            block = self._blocks.pop(0)
            whole[filled : filled + len(block)] = block
            filled += len(block)
        return Bank(whole)
