"""Gram matrices of inner layers (Sastry & Oore, ICML 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.learning import Learner, RowSample
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.stages import find_stages, look_at, parts_by_name
from tulip_ood.numerics import random
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["Gram", "GramRows", "GramState", "deviations", "gram_rows", "held_out_tenth"]

# What is added to a bound before it is divided by, as a share of the layer's mean bound. After a
# ReLU bounds of 0 are common; with the reference's absolute 1e-6 a value that is 0 but for rounding
# counts for more than all others. So rounding, 1e-7 of a value, counts for 1e-5 at most.
_FLOOR = 1e-2
_HELD_LIMIT = 2000  # held-out inputs whose statistics are kept


def gram_rows(maps: Tensor, powers: Sequence[int]) -> Tensor:
    """The row sums of (F^p F^pᵀ)^(1/p) for each power: [N, C, …] → [N, powers, C], float32.

    F^p is taken element by element, the root with its sign after summing. The row sums
    Σ_j Σ_t F_it^p F_jt^p = Σ_t F_it^p (Σ_j F_jt^p) need no C × C matrix.

    Args:
        maps: A layer's output, channels second.
        powers: Whole numbers, increasing.

    Example:
        >>> gram_rows(torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]), (1, 2))
        tensor([[[7.0000, 3.0000],
                 [4.5826, 2.2361]]])
    """
    # Devices without float64 (MPS) have it done on the CPU: a tenth power leaves float32's range.
    where = maps.device if maps.device.type in ("cpu", "cuda") else torch.device("cpu")
    wide = maps.flatten(2) if maps.ndim > 2 else maps.unsqueeze(2)
    wide = wide.to(where, torch.float64)
    raised, reached, rows = wide, 1, []
    for power in powers:
        while reached < power:
            raised, reached = raised * wide, reached + 1
        sums = (raised * raised.sum(dim=1, keepdim=True)).sum(dim=2)
        rows.append(sums.sign() * sums.abs().pow(1.0 / power))
    return torch.stack(rows, dim=1).to(torch.float32)


class GramRows(Measure):
    """`gram_rows` of several layers, [N, layers, powers, width]; narrow ones are filled up with 0.

    Args:
        powers: Whole numbers, increasing.
        layers: Globs on the names of parts, or None for the outputs of the stages.

    Example:
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(ResNet18Small(10), make_task("classification"))
        >>> GramRows((1, 2), None)(network, torch.randn(3, 3, 32, 32)).shape
        torch.Size([3, 4, 2, 512])
    """

    def __init__(self, powers: tuple[int, ...], layers: tuple[str, ...] | None) -> None:
        self._powers, self._named = powers, layers
        self._found: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """All that it depends on."""
        layers = "stages" if self._named is None else ",".join(self._named)
        return f"gram:powers={','.join(map(str, self._powers))}:layers={layers}"

    def layers(self, network: Network, inputs: Inputs) -> tuple[str, ...]:
        """The parts of the network that are looked at."""
        if self._found is None:
            if self._named is not None:
                found = parts_by_name(network, inputs, self._named, "layers")
            else:
                found = find_stages(network, inputs)
            if not found:
                raise ModelError(
                    f"gram looks at the maps [N, C, H, W] of a network's stages, and "
                    f"{type(network.module).__name__} has none that could be found: looked for "
                    f"containers of repeated blocks with convolutions. Name parts with layers=(…)"
                )
            self._found = found
        return self._found

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """[N, layers, powers, width]."""
        names = self.layers(network, inputs)
        found = look_at(network, inputs, {name: self._look(name) for name in names})
        width = max(rows.shape[2] for rows in found.values())
        filled = [
            nn.functional.pad(found[name], (0, width - found[name].shape[2])) for name in names
        ]
        return torch.stack(filled, dim=1)

    def _look(self, name: str) -> Any:
        def look(out: Any) -> Tensor:
            if not isinstance(out, Tensor) or out.ndim not in (2, 4):
                came = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise ModelError(
                    f"gram looks at outputs [N, C] or [N, C, H, W], channels second, but {name!r} "
                    f"gives {came}: name other parts with layers=(…)"
                )
            return gram_rows(out, self._powers)

        return look


@dataclass(frozen=True)
class GramState:
    """What was learned.

    Attributes:
        low: The smallest value of each statistic by predicted class, [classes, layers, powers,
            width].
        high: The largest.
        floor: What is added to a bound before it is divided by, [layers, powers, 1].
        scale: The mean deviation of held-out inputs, [layers]; 1 where they do not deviate.

    Example:
        >>> bounds = torch.zeros(3, 1, 2, 4), torch.ones(3, 1, 2, 4)
        >>> GramState(*bounds, torch.ones(1, 2, 1), torch.ones(1)).scale
        tensor([1.])
    """

    low: Tensor
    high: Tensor
    floor: Tensor
    scale: Tensor


def deviations(rows: Tensor, low: Tensor, high: Tensor, floor: Tensor) -> Tensor:
    """How far outside the bounds, as a share of them, summed within each layer: [N, layers].

    Args:
        rows: [N, layers, powers, width].
        low: The bounds of each input's class, of the same shape.
        high: Likewise.
        floor: Added to every bound before it is divided by.

    Example:
        >>> rows, ones = torch.tensor([[[[3.0, 1.0]]]]), torch.ones(1, 1, 1, 2)
        >>> deviations(rows, ones, 2 * ones, torch.zeros(1, 1, 1))
        tensor([[0.5000]], dtype=torch.float64)
    """
    rows, low, high, floor = (t.to(torch.float64) for t in (rows, low, high, floor))
    below = (low - rows).clamp_min(0.0) / (low.abs() + floor)
    above = (rows - high).clamp_min(0.0) / (high.abs() + floor)
    return (below + above).sum(dim=(-2, -1))


def held_out_tenth(first: int, count: int, seed: int) -> Tensor:
    """Which of the rows first … first + count − 1 are held out: one of each ten, [count].

    Example:
        >>> mask = held_out_tenth(0, 100, seed=0)
        >>> int(mask.sum()), bool((mask[30:] == held_out_tenth(30, 70, seed=0)).all())
        (10, True)
    """
    rows = torch.arange(first, first + count)
    block, ten = rows // 10240, rows // 10 % 1024
    held = torch.zeros(count, dtype=torch.bool)
    for index in block.unique().tolist():
        place = random.integers((1024,), 10, seed=seed, name="gram", index=index)
        here = block == index
        held[here] = rows[here] % 10 == place[ten[here]]
    return held


class _GramLearner(Learner):
    """Bounds by predicted class of nine tenths, and the statistics of (a sample of) the rest."""

    def __init__(self, key: str, seed: int) -> None:
        self._key, self._seed, self._n = key, seed, 0
        self._low: Tensor | None = None
        self._sample = RowSample(_HELD_LIMIT, seed=seed)

    def add(self, passes: Passes) -> None:
        rows, predicted = passes.extras[self._key], passes.base.argmax(dim=-1)
        if self._low is None:
            shape = (passes.base.shape[-1], *rows.shape[1:])
            self._low, self._high = (
                rows.new_full(shape, torch.inf),
                rows.new_full(shape, -torch.inf),
            )
        held = held_out_tenth(self._n, len(passes), self._seed)
        self._n += len(passes)
        if bool(held.any()):
            kept = rows[held].flatten(1)
            self._sample.add(torch.cat([kept, predicted[held].unsqueeze(1).to(kept.dtype)], dim=1))
        rows, predicted = rows[~held], predicted[~held]
        for c in predicted.unique().tolist():
            own = rows[predicted == c]
            self._low[c] = torch.minimum(self._low[c], own.amin(dim=0))
            self._high[c] = torch.maximum(self._high[c], own.amax(dim=0))

    def finish(self) -> GramState:
        if self._low is None or self._n < 10:
            raise InputError(
                f"gram holds a tenth of the data out to set its scale: it needs at least 10 "
                f"inputs, got {self._n}"
            )
        # A class that was never predicted has the bounds of all together.
        seen = self._low.isfinite()
        low = torch.where(seen, self._low, self._low.amin(dim=0))
        high = torch.where(seen, self._high, self._high.amax(dim=0))
        held = torch.cat(self._sample.parts())
        rows = held[:, :-1].reshape(-1, *low.shape[1:])
        state = GramState(low, high, _floor(low, high), low.new_ones(low.shape[1]))
        mean = _deviate(rows, held[:, -1].long(), state).mean(dim=0)
        return replace(state, scale=torch.where(mean > 0, mean, 1.0))


def _floor(low: Tensor, high: Tensor) -> Tensor:
    """A share of the mean size of a layer's bounds, for each power; those that are 0 left out."""
    bounds = torch.stack([low, high]).abs().to(torch.float64)
    total, count = bounds.sum(dim=(0, 1, -1)), (bounds > 0).sum(dim=(0, 1, -1))
    # A layer that has given nothing but 0 has no scale of its own.
    mean = torch.where(count > 0, total / count.clamp_min(1), 1.0)
    return _FLOOR * mean.unsqueeze(-1)


def _deviate(rows: Tensor, predicted: Tensor, state: GramState) -> Tensor:
    parts = [
        deviations(
            rows[block], state.low[predicted[block]], state.high[predicted[block]], state.floor
        )
        for block in row_blocks(len(rows), state.low[0].numel())
    ]
    return torch.cat(parts)


class Gram(Detector):
    """How far the Gram matrices of inner layers lie outside what their predicted class has shown.

    Deviations are summed over statistics, divided by their mean on held-out data layer by layer,
    summed over layers, and divided by the largest probability.

    Args:
        model: A trained convolutional `torch.nn.Module` that returns logits (or has `.logits`).
        powers: The powers p that elements are raised to; OpenOOD's 1 … 5 (the paper has 10).
        layers: Names of parts, or globs on names, whose outputs are looked at; by default the
            outputs of the stages (containers of repeated blocks; layer1 … layer4 of a ResNet).
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.gram import Gram
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = Gram(model, layers=["1"]).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "gram"
    state_class: ClassVar[type] = GramState
    learns_from_data: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        powers: Sequence[int] = (1, 2, 3, 4, 5),
        layers: Sequence[str] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        self.powers = tuple(powers)
        if not self.powers or any(p != int(p) or p < 1 for p in self.powers):
            raise InputError(f"powers must be whole numbers from 1 on, got {list(powers)}")
        if list(self.powers) != sorted(set(self.powers)):
            raise InputError(f"powers must be increasing, got {list(powers)}")
        if isinstance(layers, str):
            raise InputError(f"layers must be a list of names, got the text {layers!r}")
        self._layers = None if layers is None else tuple(layers)
        self._measure = GramRows(self.powers, self._layers)

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure,)

    def _knows_strangers(self) -> bool:
        return True

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        layers = None if self._layers is None else list(self._layers)
        return {**config, "powers": list(self.powers), "layers": layers}, tensors

    def _learner(self) -> Learner:
        return _GramLearner(self._measure.key, self.seed)

    def _score(self, state: GramState, passes: Passes) -> Tensor:
        logits = passes.base.to(torch.float64)
        rows = passes.extras[self._measure.key]
        found = _deviate(rows, logits.argmax(dim=-1), state)
        total = (found / state.scale).sum(dim=-1)
        return total / logits.softmax(dim=-1).amax(dim=-1)
