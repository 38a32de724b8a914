"""Learning batch by batch, so that a million images need no more memory than a thousand."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.random import permutation

__all__ = ["FeatureBank", "Learner", "Moments"]


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


class Moments:
    """Counts, means and second moments of features, by class, in float64.

    Everything is taken about the first batch's mean, so that large means do not cost digits.

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
        self._origin: Tensor | None = None
        self.n = 0

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in features [N, d] with their classes [N]."""
        wide = features.to(torch.float64)
        if self._origin is None:
            d = wide.shape[1]
            self._origin = wide.mean(dim=0)
            self._counts = torch.zeros(self._classes, dtype=torch.float64)
            self._sums = torch.zeros(self._classes, d, dtype=torch.float64)
            self._second = torch.zeros(d, d, dtype=torch.float64)
        wide = wide - self._origin
        self._counts += torch.bincount(labels, minlength=self._classes)
        self._sums.index_add_(0, labels, wide)
        self._second += wide.T @ wide
        self.n += len(wide)

    @property
    def seen(self) -> Tensor:
        """Which classes have any input, [classes]."""
        return self._counts > 0

    @property
    def mean(self) -> Tensor:
        """The mean of all features, [d]."""
        assert self._origin is not None
        return self._origin + self._sums.sum(dim=0) / self.n

    @property
    def class_means(self) -> Tensor:
        """The mean of each class, [classes, d]; that of all for a class without inputs."""
        assert self._origin is not None
        means = self._origin + self._sums / self._counts.clamp_min(1).unsqueeze(1)
        return torch.where(self.seen.unsqueeze(1), means, self.mean)

    @property
    def within(self) -> Tensor:
        """The covariance about the class means, divided by N, [d, d]."""
        scaled = self._sums / self._counts.clamp_min(1).sqrt().unsqueeze(1)
        return (self._second - scaled.T @ scaled) / self.n

    @property
    def total(self) -> Tensor:
        """The covariance about the mean of all, divided by N, [d, d]."""
        mean = self._sums.sum(dim=0) / self.n
        return self._second / self.n - torch.outer(mean, mean)

    def second_about(self, point: Tensor) -> Tensor:
        """E[(h − point)(h − point)ᵀ], [d, d]."""
        assert self._origin is not None
        shift = point.to(torch.float64) - self._origin
        mean = self._sums.sum(dim=0) / self.n
        cross = torch.outer(mean, shift)
        return self._second / self.n - cross - cross.T + torch.outer(shift, shift)


class FeatureBank:
    """Features kept as they come, or a seeded sample of them beyond a limit.

    Args:
        limit: Keep at most so many; all if None.
        seed: Of the sample.

    Example:
        >>> bank = FeatureBank(limit=2)
        >>> bank.add(torch.arange(6.0).reshape(3, 2))
        >>> bank.rows().shape
        torch.Size([2, 2])
    """

    def __init__(self, limit: int | None = None, seed: int = 0) -> None:
        self._limit, self._seed = limit, seed
        self._parts: list[Tensor] = []
        self._held = 0

    def add(self, *columns: Tensor) -> None:
        """Take in rows; several tensors [N, …] are kept side by side."""
        self._parts.append(torch.cat([c.reshape(len(c), -1).to(torch.float32) for c in columns], 1))
        self._held += len(self._parts[-1])
        if self._limit is not None and self._held > 2 * self._limit:
            self._parts = [self.rows()]
            self._held = len(self._parts[0])

    def rows(self) -> Tensor:
        """What is kept, float32."""
        if not self._parts:
            raise InputError("there is nothing to learn from: the loader gave no inputs")
        whole = torch.cat(self._parts)
        if self._limit is not None and len(whole) > self._limit:
            order = permutation(len(whole), seed=self._seed, name="bank")[: self._limit]
            whole = whole[order.sort().values]
        return whole


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
