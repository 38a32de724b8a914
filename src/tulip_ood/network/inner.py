"""What the inner stages of a network see of an input: the mean and deviation of every channel.

Early stages know colours, edges and textures, which the last one has forgotten in favour of the
classes. An input whose statistics no validation input has is of another kind, whatever the network
answers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.network.blocks import repeated_blocks
from tulip_ood.network.inputs import Inputs, take
from tulip_ood.network.measures import Look
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.stages import convolves, find_stages, look_at, map_sizes

__all__ = ["InnerStatistics", "Stage", "find_inner"]


@dataclass(frozen=True)
class Stage:
    """One inner stage.

    Attributes:
        name: The part of the network whose output is looked at.
        channels: Which axis of it holds the channels: 1 for maps, −1 for tokens.
        width: How many channels there are.

    Example:
        >>> Stage("layer1", 1, 64).width
        64
    """

    name: str
    channels: int
    width: int

    def statistics(self, given: Any) -> Tensor:
        """[N, 2 · width]: mean and deviation over all positions.

        Args:
            given: The stage's output: maps or tokens, or a tuple that begins with them.
        """
        out = _maps_of(given)
        assert out is not None  # `find_inner` has seen to it
        # Views of a tensor that is written to afterwards would make a graph hard to cut.
        positions = list(range(2, out.ndim)) if self.channels == 1 else list(range(1, out.ndim - 1))
        if out.dtype != torch.float16:
            wide = out.to(torch.float32)
            mean = wide.mean(dim=positions, keepdim=True)
            deviation = (wide - mean).square().mean(dim=positions).sqrt()
            return torch.cat([mean.reshape(deviation.shape), deviation], dim=1)
        # Maps of half precision need not be copied to float32: means and norms are summed in it.
        mean = out.mean(dim=positions, keepdim=True, dtype=torch.float32)
        near = mean.to(out.dtype)
        count = math.prod(out.shape[position] for position in positions)
        spread = torch.linalg.vector_norm(out - near, dim=positions, dtype=torch.float32)
        missed = (mean - near.to(torch.float32)).reshape(spread.shape)
        deviation = (spread.square() / count - missed.square()).clamp_min(0.0).sqrt()
        return torch.cat([mean.reshape(deviation.shape), deviation], dim=1)


def find_inner(network: Network, inputs: Inputs) -> tuple[Stage, ...]:
    """The stages before the last one, or the blocks at a quarter, a half and three quarters.

    Where there are no containers of repeated blocks, the last convolution or normalisation at each
    size of maps ends a stage. Networks with maps of one size have blocks: convolutions, or a
    transformer's, whose tokens hold their channels last. Empty where there is nothing to look at.

    Args:
        network: The network.
        inputs: A few inputs; the first is run once.

    Example:
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(ResNet18Small(10), make_task("classification"))
        >>> [(stage.name, stage.width) for stage in find_inner(network, torch.zeros(2, 3, 32, 32))]
        [('layer1', 64), ('layer2', 128), ('layer3', 256)]
    """
    axes = dict.fromkeys(find_stages(network, inputs)[:-1] or _by_size(network, inputs), 1)
    if not axes:
        parts = {name: network.module.get_submodule(name) for name in _quarters(network, inputs)}
        axes = {name: 1 if convolves(part) else -1 for name, part in parts.items()}

    def shape(given: Any) -> tuple[int, ...] | None:
        out = _maps_of(given)
        return None if out is None else tuple(out.shape)

    found = look_at(network, take(inputs, slice(0, 1)), dict.fromkeys(axes, shape))
    return tuple(
        Stage(name, axis, sizes[axis])
        for name, axis in axes.items()
        if (sizes := found.get(name)) is not None
    )


def _maps_of(given: Any) -> Tensor | None:
    """A part's output, or the first of several: blocks may give attention weights along."""
    out = given[0] if isinstance(given, tuple | list) and given else given
    if not isinstance(out, Tensor) or out.is_nested:  # nested: no shape that could be looked at
        return None
    return out if out.ndim >= 3 and out.is_floating_point() else None


def _by_size(network: Network, inputs: Inputs) -> tuple[str, ...]:
    """The last part with convolutions, or normalisation of maps, at each size but the smallest."""
    spans = network.probe(inputs).calls.spans
    parts = {name: network.module.get_submodule(name) for name in spans if name}
    mapping = [n for n, p in parts.items() if convolves(p) or isinstance(p, nn.BatchNorm2d)]
    sizes = map_sizes(network, inputs, mapping)
    last = {
        # A padded map is as large as the map: what counts is how often the side was halved.
        round(math.log2(math.sqrt(sizes[name][0] * sizes[name][1]))): name
        for name in sorted(sizes, key=lambda name: spans[name][1])
    }
    return tuple(last[halved] for halved in sorted(last, reverse=True)[:-1])


def _quarters(network: Network, inputs: Inputs) -> tuple[str, ...]:
    calls = network.probe(inputs).calls
    blocks = [name for group in repeated_blocks(network.module, calls).values() for name in group]
    blocks.sort(key=lambda name: calls.spans[name][1])
    at = sorted({len(blocks) * quarter // 4 - 1 for quarter in (1, 2, 3)})
    return tuple(blocks[i] for i in at if 0 <= i < len(blocks) - 1)


class InnerStatistics(Look):
    """The statistics of some inner stages side by side, [N, Σ 2 · width].

    Args:
        stages: Which.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> conv = torch.nn.Conv2d(1, 2, 3)
        >>> model = torch.nn.Sequential(conv, torch.nn.Flatten(), torch.nn.Linear(72, 3))
        >>> network = Network(model, make_task("classification"))
        >>> InnerStatistics((Stage("0", 1, 2),))(network, torch.rand(5, 1, 8, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self.stages = stages

    @property
    def key(self) -> str:
        """All that it depends on."""
        return "inner:" + ",".join(f"{s.name}@{s.channels}" for s in self.stages)

    @property
    def looks(self) -> Mapping[str, Callable[[Any], Tensor]]:
        """At the outputs of the stages."""
        return {stage.name: stage.statistics for stage in self.stages}

    def gathered(self, found: Mapping[str, Tensor]) -> Tensor:
        """[N, Σ 2 · width]."""
        return torch.cat([found[stage.name] for stage in self.stages], dim=1)

    def of(self, passes: Passes) -> list[Tensor]:
        """The statistics of each stage, from a record that holds this measure."""
        widths = [2 * stage.width for stage in self.stages]
        return list(passes.extras[self.key].split(widths, dim=1))
