"""WeiPer+KLD: perturbed class projections (Granz, Heurich & Landgraf, NeurIPS 2024).

The last layer is perturbed r times. All activations of one input, and all of its r·o perturbed
logits, are each taken as samples of one density; an input is unsure where its two densities are
far from their means over ID data. Like TULiP it looks at noise on weights, of one layer.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError
from tulip_ood.network.features import Head
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import random
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["Density", "Perturbed", "WeiPer"]

_HELD = 1 << 22  # values that learning holds: 32 MB
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
        """The share of each row's values [N, k] in each bin, [N, n_bins].

        Values outside count in no bin.
        """
        n, bins = len(values), len(self.mass)
        width = (self.high - self.low) / bins
        place = ((values - self.low) / width).floor()
        # The largest value seen belongs to the last bin, not beyond it.
        place = torch.where(values == self.high, bins - 1.0, place)
        inside = (place >= 0) & (place < bins)
        index = (torch.arange(n).unsqueeze(1) * bins + place.to(torch.int64))[inside]
        found = torch.bincount(index, minlength=n * bins).reshape(n, bins)
        return found.to(torch.float64) / values.shape[1]


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
    both divergences symmetric.

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
        self._heads: tuple[Head, Head] | None = None

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return config | {n: getattr(self, n) for n in ("distance", "repeats", "n_bins")}, tensors

    def perturbed_heads(self, head: Head) -> Head:
        """All r perturbed last layers as one of r·o outputs, float64.

        Args:
            head: The network's own.
        """
        if self._heads is not None and all(map(torch.equal, self._heads[0], head)):
            return self._heads[1]  # drawing 100 times a layer takes longer than scoring
        weight, bias = (part.to(torch.float64) for part in head)
        shape = (self.repeats, *weight.shape)
        noise = random.normal(shape, seed=self.seed, name="weiper").to(torch.float64)
        # Every class is moved in a random direction, by the same share of its weights' length.
        moved = F.normalize(noise, dim=-1) * self.distance * weight.norm(dim=1, keepdim=True)
        heads = Head((weight + moved).flatten(0, 1), bias.repeat(self.repeats))
        self._heads = (head, heads)
        return heads

    def _learner(self) -> Learner:
        return _Densities(self)

    def _score(self, state: Perturbed, passes: Passes) -> Tensor:
        features = passes.need_features()
        heads = self.perturbed_heads(passes.head)
        found = torch.empty(len(features), dtype=torch.float64)
        for part in row_blocks(len(features), len(heads.bias)):
            h = features[part].to(torch.float64)
            logits = heads.logits(h)
            sure = logits.unflatten(1, (self.repeats, -1)).softmax(-1).amax(-1).mean(-1)
            found[part] = (
                _divergence(state.activations, h, self.smoothing, _FLOOR)
                + self.lambda_1
                * _divergence(state.logits, logits, self.smoothing_perturbed, _FLOOR_PERTURBED)
                - self.lambda_2 * sure
            )
        return found


class _Densities(Learner):
    """The two histograms of ID data, filled batch by batch."""

    def __init__(self, detector: WeiPer) -> None:
        self._detector = detector
        self._heads: Head | None = None
        self._activations, self._logits = _Histogram(), _Histogram()

    def add(self, passes: Passes) -> None:
        features = passes.need_features()
        if self._heads is None:
            self._heads = self._detector.perturbed_heads(passes.head)
        good = features.isfinite().all(dim=1) & passes.base.isfinite().all(dim=1)
        features = features[good]
        for part in row_blocks(len(features), len(self._heads.bias)):
            h = features[part].to(torch.float64)
            self._activations.add(h)
            self._logits.add(self._heads.logits(h))

    def finish(self) -> Perturbed:
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


def _divergence(density: Density, values: Tensor, smoothing: int, floor: float) -> Tensor:
    """KL(p‖q) + KL(q‖p) of the ID density p and each row's smoothed density q, [N]."""
    q = _smoothed(density.shares(values), smoothing) + floor
    q = q / q.sum(dim=1, keepdim=True)
    p = density.mass + floor
    p = p / p.sum()
    return ((p - q) * (p.log() - q.log())).sum(dim=1)


def _smoothed(shares: Tensor, width: int) -> Tensor:
    """The mean over `width` neighbouring bins, the outermost repeated beyond the ends."""
    before = (width - 1) // 2
    padded = F.pad(shares.unsqueeze(1), (before, width - 1 - before), mode="replicate")
    return F.avg_pool1d(padded, width, stride=1).squeeze(1)
