"""WeiPer+KLD: perturbed class projections (Granz, Heurich & Landgraf, NeurIPS 2024).

The last layer is perturbed r times. All activations of one input, and all of its r·o perturbed
logits, are each taken as samples of one density; an input is unsure where its two densities are
far from their means over ID data. Like TULiP it looks at noise on weights, of one layer.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.perturbed_heads import PerturbedHeads
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.blocks import row_blocks

if TYPE_CHECKING:
    from tulip_ood.network.features import Head

__all__ = ["Density", "Perturbed", "WeiPer"]

_HELD = 1 << 22  # values that learning holds: 32 MB
_READ = 1 << 24  # features that it reads before it looks at their perturbed logits: 64 MB
_CELLS = 1 << 20  # in which it counts more: far finer than the bins that are compared
_FINEST = 2.0**40  # cells between 0 and the largest value: float64 tells no more apart safely
# Added to densities of activations and of perturbed logits, so that no bin is empty.
_FLOOR, _FLOOR_PERTURBED = 0.01, 0.025


@dataclass(frozen=True)
class Density:
    """The mean density of ID inputs.

    Attributes:
        low: The smallest value seen.
        high: The largest.
        mass: The share of values in each of `n_bins` equal bins between them.

    Example:
        >>> Density(0.0, 2.0, torch.tensor([0.5, 0.5])).shares(torch.tensor([[0.5, 1.5, 1.6, 9.0]]))
        tensor([[0.2500, 0.5000]], dtype=torch.float64)
    """

    low: float
    high: float
    mass: Tensor

    def shares(self, values: Tensor) -> Tensor:
        """The share of each row's values [N, k] in each bin, [N, n_bins]."""
        return self.counts(values).to(torch.float64) / values.shape[1]

    def counts(self, values: Tensor) -> Tensor:
        """How many of each row's values [N, k] are in each bin, [N, n_bins].

        Values outside count in no bin.
        """
        n, bins = len(values), len(self.mass)
        width = (self.high - self.low) / bins
        place = ((values - self.low) / width).floor()
        # The largest value seen belongs to the last bin, not beyond it.
        place = torch.where(values == self.high, bins - 1.0, place)
        inside = (place >= 0) & (place < bins)
        index = (torch.arange(n).unsqueeze(1) * bins + place.to(torch.int64))[inside]
        return torch.bincount(index, minlength=n * bins).reshape(n, bins)


@dataclass(frozen=True)
class Perturbed:
    """What WeiPer learns.

    Attributes:
        activations: The density of penultimate features.
        logits: The density of perturbed logits.

    Example:
        >>> one = Density(0.0, 1.0, torch.ones(1))
        >>> Perturbed(one, one).logits.high
        1.0
    """

    activations: Density
    logits: Density


class WeiPer(Detector):
    """KL divergences of an input's activations and perturbed logits to the ID densities.

    Score: KL(features) + λ₁ · KL(perturbed logits) − λ₂ · mean MSP of the perturbed predictions,
    both divergences symmetric. The r perturbed layers are held if `fit_memory` is enough (at 21,000
    classes it is not), else drawn again whenever something is scored.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        lambda_1: λ₁.
        lambda_2: λ₂.
        smoothing: s₁, bins that are averaged over in an input's density of activations.
        smoothing_perturbed: s₂, the same of perturbed logits.
        distance: δ, the length of the noise on a class's weights, as a share of theirs.
        repeats: r, the number of perturbations.
        n_bins: Bins of both densities.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> from tulip_ood.detectors.weiper import WeiPer
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = WeiPer(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "weiper"
    state_class: ClassVar[type] = Perturbed
    learns_from_data: ClassVar[bool] = True
    search = {  # noqa: RUF012 – never changed
        "lambda_1": (0.1, 1.0, 2.5, 4.0),
        "lambda_2": (0.1, 1.0),
        "smoothing": (4, 20),
        "smoothing_perturbed": (15, 40),
    }

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        lambda_1: float = 2.5,
        lambda_2: float = 0.1,
        smoothing: int = 4,
        smoothing_perturbed: int = 15,
        distance: float = 1.8,
        repeats: int = 100,
        n_bins: int = 100,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        if distance <= 0 or repeats < 1 or n_bins < 2 or min(smoothing, smoothing_perturbed) < 1:
            raise InputError(
                f"weiper needs distance > 0, repeats ≥ 1, n_bins ≥ 2 and smoothing ≥ 1, got "
                f"{distance}, {repeats}, {n_bins}, and {smoothing} and {smoothing_perturbed}"
            )
        self.lambda_1, self.lambda_2 = lambda_1, lambda_2
        self.smoothing, self.smoothing_perturbed = smoothing, smoothing_perturbed
        self.distance, self.repeats, self.n_bins = distance, repeats, n_bins
        self.perturbed_heads = PerturbedHeads(
            repeats=repeats, distance=distance, seed=self.seed, memory=self.fit_memory
        )

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return config | {n: getattr(self, n) for n in ("distance", "repeats", "n_bins")}, tensors

    def _learner(self) -> Learner:
        return _Densities(self)

    def _score(self, state: Perturbed, passes: Passes) -> Tensor:
        features, outputs = passes.need_features(), passes.head.weight.shape[0]
        n = len(features)
        own = torch.empty(n, self.n_bins, dtype=torch.float64)
        for part in row_blocks(n, features.shape[1]):
            own[part] = state.activations.shares(features[part].to(torch.float64))
        counts = torch.zeros(n, self.n_bins, dtype=torch.int64)
        sure = torch.zeros(n, dtype=torch.float64)
        for heads in self.perturbed_heads.blocks(passes.head):
            for part in row_blocks(n, len(heads.bias)):
                logits = heads.logits(features[part].to(torch.float64))
                counts[part] += state.logits.counts(logits)
                sure[part] += logits.unflatten(1, (-1, outputs)).softmax(-1).amax(-1).sum(-1)
        perturbed = counts.to(torch.float64) / (self.repeats * outputs)
        return (
            _divergence(state.activations, own, self.smoothing, _FLOOR)
            + self.lambda_1
            * _divergence(state.logits, perturbed, self.smoothing_perturbed, _FLOOR_PERTURBED)
            - self.lambda_2 * sure / self.repeats
        )


class _Densities(Learner):
    """The two histograms of ID data, filled batch by batch."""

    def __init__(self, detector: WeiPer) -> None:
        self._detector = detector
        self._head: Head | None = None
        self._read: list[Tensor] = []
        self._activations, self._logits = _Histogram(), _Histogram()

    def add(self, passes: Passes) -> None:
        features, self._head = passes.need_features(), passes.head
        good = features.isfinite().all(dim=1) & passes.base.isfinite().all(dim=1)
        self._read.append(features[good])
        if sum(part.numel() for part in self._read) > _READ:
            self._look()

    def _look(self) -> None:
        """Take in what was read, much at once: perturbed heads may have to be drawn for it."""
        if self._head is None or not self._read:
            return
        features, self._read = torch.cat(self._read), []
        for part in row_blocks(len(features), features.shape[1]):
            self._activations.add(features[part].to(torch.float64))
        for heads in self._detector.perturbed_heads.blocks(self._head):
            for part in row_blocks(len(features), len(heads.bias)):
                self._logits.add(heads.logits(features[part].to(torch.float64)))

    def finish(self) -> Perturbed:
        self._look()
        bins = self._detector.n_bins
        return Perturbed(self._activations.density(bins), self._logits.density(bins))


class _Histogram:
    """Values in equal bins of their range, which is known only at the end.

    A few million values are held. More are counted in fine cells whose width, a power of two,
    doubles as the range grows. Neither the order nor the size of batches makes a difference.
    """

    def __init__(self) -> None:
        self._low, self._high = float("inf"), -float("inf")
        self._held: list[Tensor] | None = []
        self._n = 0
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._width, self._first = 2.0**-60, 0

    def add(self, values: Tensor) -> None:
        """Take in values of any shape."""
        if values.numel() == 0:
            return
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))
        self._n += values.numel()
        if self._held is not None:
            self._held.append(values.flatten())
            if self._n <= _HELD:
                return
            values, self._held = torch.cat(self._held), None
            self._counts = torch.zeros(_CELLS, dtype=torch.int64)
        self._widen()
        cells = (values / self._width).floor().to(torch.int64).flatten() - self._first
        self._counts += torch.bincount(cells, minlength=_CELLS)

    def _widen(self) -> None:
        """Make room for all that was seen: move the first cell, join neighbours where needed."""
        width, size = self._width, max(abs(self._low), abs(self._high))
        while self._high // width - self._low // width >= _CELLS or size / width >= _FINEST:
            width *= 2.0
        first = int(self._low // width)
        if (width, first) == (self._width, self._first):
            return
        # Cell i of the old width, counted from 0, lies in cell i // ratio of the new one.
        used = self._counts.nonzero().squeeze(1)
        joined = min(round(width / self._width), 1 << 62)
        moved = (used + self._first) // joined - first
        wider = torch.zeros_like(self._counts)
        self._counts = wider.index_add_(0, moved, self._counts[used])
        self._width, self._first = width, first

    def density(self, bins: int) -> Density:
        """The share of all values in each bin."""
        if self._n == 0:
            raise InputError("there is nothing to learn from: the loader gave no usable inputs")
        if self._high == self._low:
            raise InputError(
                f"all values are {self._low:g}: the network's features say nothing about its inputs"
            )
        empty = Density(self._low, self._high, torch.zeros(bins, dtype=torch.float64))
        if self._held is not None:
            mass = empty.shares(torch.cat(self._held).unsqueeze(0)).squeeze(0)
        else:
            mass = self._shares(bins)
        return replace(empty, mass=mass)

    def _shares(self, bins: int) -> Tensor:
        """The share in each bin; a cell that an edge cuts is divided evenly."""
        total = self._counts.to(torch.float64).cumsum(0)
        below = torch.cat([torch.zeros(1, dtype=torch.float64), total]) / total[-1]
        edges = torch.linspace(self._low, self._high, bins + 1, dtype=torch.float64)
        place = (edges / self._width - self._first).clamp(0.0, float(_CELLS))
        cell = place.floor().to(torch.int64).clamp_max(_CELLS - 1)
        upto = below[cell] + (place - cell) * (below[cell + 1] - below[cell])
        upto[0], upto[-1] = 0.0, 1.0
        return upto.diff()


def _divergence(density: Density, shares: Tensor, smoothing: int, floor: float) -> Tensor:
    """KL(p‖q) + KL(q‖p) of the ID density p and each row's smoothed density q, [N]."""
    q = _smoothed(shares, smoothing) + floor
    q = q / q.sum(dim=1, keepdim=True)
    p = density.mass + floor
    p = p / p.sum()
    return ((p - q) * (p.log() - q.log())).sum(dim=1)


def _smoothed(shares: Tensor, width: int) -> Tensor:
    """The mean over `width` neighbouring bins, the outermost repeated beyond the ends."""
    before = (width - 1) // 2
    padded = F.pad(shares.unsqueeze(1), (before, width - 1 - before), mode="replicate")
    return F.avg_pool1d(padded, width, stride=1).squeeze(1)
