"""Learning batch by batch, so that a million images need no more memory than a thousand."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.random import philox

__all__ = ["Learned", "Learner", "Moments", "RowSample"]


class Learner(ABC):
    """Takes passes of ID inputs, part by part, and gives what was learned.

    Example:
        >>> class Count(Learner):
        ...     n = 0
        ...     def add(self, passes):
        ...         self.n += len(passes)
        ...     def finish(self):
        ...         return self.n
        >>> Count().finish()
        0
    """

    @abstractmethod
    def add(self, passes: Passes) -> None:
        """Take some inputs in."""

    @abstractmethod
    def finish(self) -> Any:
        """What was learned: a frozen dataclass."""


@dataclass(frozen=True)
class Learned:
    """What a learner has made of training data, so that several readers share one reading.

    Attributes:
        state: What `Learner.finish` gave.
        n: The number of training inputs.

    Example:
        >>> Learned(None, 50_000).n
        50000
    """

    state: Any
    n: int


class Moments:
    """Counts, means and scatter of features, by class, in float64.

    Deviations are always taken from a mean before they are squared, batches joined by Chan's rule:
    as a difference of second moments, the covariance within classes that lie far apart would be
    rounding in the directions in which there is none, and be inverted as such.

    Args:
        classes: The number of classes.

    Example:
        >>> moments = Moments(2)
        >>> moments.add(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
        >>> moments.class_means.flatten().tolist(), float(moments.within)
        ([2.0, 5.0], 0.6666666666666666)
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._means: Tensor | None = None
        self.n = 0

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in features [N, d] with their classes [N]."""
        wide = features.to(torch.float64)
        if self._means is None:
            d = wide.shape[1]
            self._counts = torch.zeros(self._classes, dtype=torch.float64)
            self._means = torch.zeros(self._classes, d, dtype=torch.float64)
            self._scatter = torch.zeros(d, d, dtype=torch.float64)
        classes, place, here = labels.unique(return_inverse=True, return_counts=True)
        here = here.to(torch.float64).unsqueeze(1)
        first = wide[:1]  # means of deviations from a row have its digits to spare
        sums = torch.zeros(len(classes), wide.shape[1], dtype=torch.float64)
        means = first + sums.index_add_(0, place, wide - first) / here
        apart = wide - means[place]
        before, known = self._counts[classes].unsqueeze(1), self._means[classes]
        gap = torch.where(before > 0, means - known, 0.0)
        joined = gap * (before * here / (before + here)).sqrt()
        self._scatter += apart.T @ apart + joined.T @ joined
        moved = known + gap * (here / (before + here))
        self._means[classes] = torch.where(before > 0, moved, means)
        self._counts[classes] += here.squeeze(1)
        self.n += len(wide)

    @property
    def seen(self) -> Tensor:
        """Which classes have any input, [classes]."""
        return self._counts > 0

    @property
    def mean(self) -> Tensor:
        """The mean of all features, [d]."""
        assert self._means is not None
        return (self._counts / self.n) @ self._means

    @property
    def class_means(self) -> Tensor:
        """The mean of each class, [classes, d]; that of all for a class without inputs."""
        assert self._means is not None
        return torch.where(self.seen.unsqueeze(1), self._means, self.mean)

    @property
    def within(self) -> Tensor:
        """The covariance about the class means, divided by N, [d, d]."""
        return self._scatter / self.n

    @property
    def total(self) -> Tensor:
        """The covariance about the mean of all, divided by N, [d, d]."""
        between = (self.class_means - self.mean) * (self._counts / self.n).sqrt().unsqueeze(1)
        return self.within + between.T @ between

    def second_about(self, point: Tensor) -> Tensor:
        """E[(h − point)(h − point)ᵀ], [d, d]."""
        shift = self.mean - point.to(torch.float64)
        return self.total + torch.outer(shift, shift)


class RowSample:
    """A fair sample of rows that come in a stream of unknown length.

    Every row draws a number from its place in the stream and the seed; the rows with the smallest
    ones stay. So each has the same chance, however the stream is cut into batches.

    Args:
        limit: Keep so many rows, all if there are not more.
        share: Keep every row with this probability in any case.
        seed: Of the numbers.

    Example:
        >>> sample = RowSample(limit=2)
        >>> sample.add(torch.arange(6.0).reshape(3, 2))
        >>> sum(len(part) for part in sample.parts())
        2
    """

    def __init__(self, limit: int, *, share: float = 0.0, seed: int = 0) -> None:
        self._limit, self._share, self._seed = limit, share, seed
        self._bound = math.inf  # rows with larger numbers cannot be in the sample any more
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._held = self._seen = 0
        self._room = limit

    def add(self, rows: Tensor) -> None:
        """Take in rows [N, …]."""
        numbers = _numbers(self._seen, len(rows), self._seed)
        self._seen += len(rows)
        chosen = numbers < max(self._bound, self._share)
        if bool(chosen.any()):
            self._kept.append((numbers[chosen], rows[chosen]))
            self._held += len(self._kept[-1][0])
        if self._held > self._room:
            self._drop()
            self._room = self._held + max(self._held // 4, 1024)

    def _drop(self) -> None:
        """Let go of rows that are not in the sample, part by part: no second copy of all."""
        numbers = torch.cat([drawn for drawn, _ in self._kept])
        if len(numbers) > self._limit:
            self._bound = float(numbers.kthvalue(self._limit).values)
        last = max(self._bound, self._share)
        for i, (drawn, rows) in enumerate(self._kept):
            chosen = drawn <= last
            if not bool(chosen.all()):
                self._kept[i] = drawn[chosen], rows[chosen]
        self._kept = [part for part in self._kept if len(part[0])]
        self._held = sum(len(drawn) for drawn, _ in self._kept)

    def parts(self) -> list[Tensor]:
        """The sample, in pieces [n, …], in the order of the stream."""
        self._drop()
        return [rows for _, rows in self._kept]


def _numbers(first: int, n: int, seed: int) -> Tensor:
    """A number in [0, 1) for each of the rows first … first + n − 1, float64."""
    place = torch.arange(first, first + n, dtype=torch.int64)
    zero = torch.zeros_like(place)
    mask = 0xFFFFFFFF
    high, low, _, _ = philox((place & mask, place >> 32, zero, zero), (seed & mask, 0x726F7773))
    return (high.to(torch.float64) + low.to(torch.float64) * 2.0**-32) * 2.0**-32


class HoldAll(Learner):
    """For methods that look at everything at once: holds the passes, then calls a function."""

    def __init__(self, learn: Any) -> None:
        self._learn = learn
        self._parts: list[Passes] = []

    def add(self, passes: Passes) -> None:
        """Keep them, without their ids."""
        self._parts.append(replace(passes, ids=None, key=""))

    def finish(self) -> Any:
        """Call the function with all of them."""
        if not self._parts:
            raise InputError("there is nothing to learn from: the loader gave no inputs")
        return self._learn(_joined(self._parts))


def _joined(parts: list[Passes]) -> Passes:
    def rows(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    return replace(
        parts[0],
        base=rows("base"),
        noisy=torch.cat([part.noisy for part in parts], dim=1),
        drift=rows("drift"),
        features=rows("features"),
        labels=rows("labels"),
        extras={k: torch.cat([part.extras[k] for part in parts]) for k in parts[0].extras},
    )
