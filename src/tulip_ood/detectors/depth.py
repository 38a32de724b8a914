"""How unusual an input looks to the inner stages of a network, seen in the base pass."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import PassCount
from tulip_ood.errors import ModelError
from tulip_ood.network.inner import InnerStatistics, Stage, find_inner
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.numerics.quantiles import quantiles

__all__ = ["Depth", "DepthState"]

# A channel that hardly varies on the validation data would count for more than all others.
_LEAST_SPREAD = 1e-3  # of the mean deviation of a stage's channels


@dataclass(frozen=True)
class DepthState:
    """What was learned of the validation inputs.

    Attributes:
        means: Of every statistic, all stages side by side.
        spreads: The deviation of each.
        centres: The median distance at each stage.
        widths: Half of q84 − q16 of the same.

    Example:
        >>> one = torch.ones(1)
        >>> DepthState(0 * one, one, 0 * one, one).means
        tensor([0.])
    """

    means: Tensor
    spreads: Tensor
    centres: Tensor
    widths: Tensor


class Depth(Detector):
    """The distance from what the inner stages have seen, averaged over the stages.

    At every stage: the mean and deviation of each channel over an image's positions, z in units of
    how they vary over the validation images, and the mean of |z|. No image is stored. A part of
    `Auto`; by itself it cannot tell another kind of input from a mildly changed one.

    Args:
        model: A trained `torch.nn.Module` with several stages of maps, or blocks of tokens.
        **common: As for every detector.

    Example:
        >>> from torch.nn import Conv2d, Flatten, Linear, ReLU, Sequential
        >>> model = Sequential(
        ...     Conv2d(1, 4, 3, stride=2), ReLU(), Conv2d(4, 8, 3), Flatten(), Linear(8, 3))
        >>> x, y = torch.rand(200, 1, 7, 7), torch.randint(3, (200,))
        >>> detector = Depth(model).fit([(x, y)])
        >>> bool(detector.score(5 * x[:5]).min() > detector.score(x).median())
        True
    """

    name: ClassVar[str] = "depth"
    state_class: ClassVar[type] = DepthState

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        self.stages: tuple[Stage, ...] = ()

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        self.stages = find_inner(self.network, rows.inputs[0])
        if not self.stages:
            raise ModelError(
                f"depth looks at the inner stages of a network, and "
                f"{type(self.network.module).__name__} has none that could be found"
            )

    def _measures(self) -> tuple[Measure, ...]:
        return (InnerStatistics(self.stages),) if self.stages else ()

    def _learn(self, passes: Passes) -> DepthState:
        stages = InnerStatistics(self.stages).of(passes)
        means, spreads, centres, widths = [], [], [], []
        for rows in stages:
            wide = rows[rows.isfinite().all(dim=1)].to(torch.float64)
            mean, spread = wide.mean(dim=0), wide.std(dim=0, correction=0)
            least = _LEAST_SPREAD * float(spread.mean())
            spread = spread.clamp_min(least if least > 0 else 1.0)
            low, middle, high = quantiles(_distance(wide, mean, spread), (0.16, 0.5, 0.84))
            means.append(mean)
            spreads.append(spread)
            centres.append(middle)
            widths.append(max((high - low) / 2, 1e-12))
        return DepthState(
            torch.cat(means),
            torch.cat(spreads),
            torch.tensor(centres, dtype=torch.float64),
            torch.tensor(widths, dtype=torch.float64),
        )

    def _score(self, state: DepthState, passes: Passes) -> Tensor:
        sizes = [2 * stage.width for stage in self.stages]
        where = passes.base.device
        means, spreads = (v.to(where).split(sizes) for v in (state.means, state.spreads))
        centres, widths = (v.to(where).unbind() for v in (state.centres, state.widths))
        seen = InnerStatistics(self.stages).of(passes)
        stages = zip(seen, means, spreads, centres, widths, strict=True)
        columns = [
            (_distance(rows.to(torch.float64), mean, spread) - centre) / width
            for rows, mean, spread, centre, width in stages
        ]
        return torch.stack(columns).mean(dim=0)

    def _scores_on_device(self) -> bool:
        return True

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was learned, and of which stages."""
        values, tensors = super().fitted_state()
        stages = [[stage.name, stage.channels, stage.width] for stage in self.stages]
        return {**values, "stages": stages}, tensors

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        own = dict(values)
        self.stages = tuple(Stage(str(n), int(c), int(w)) for n, c, w in own.pop("stages"))
        super().restore_state(own, tensors)


def _distance(rows: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """The mean of |z| over standardised statistics z, [N]."""
    return ((rows - mean) / spread).abs().mean(dim=1)
