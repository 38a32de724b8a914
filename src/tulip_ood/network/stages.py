"""The stages of a convolutional network, and looking at what its parts give on the way.

A stage is a run of blocks that work on maps of one size. Where blocks of one class are repeated in
several containers (a ResNet's layer1 … layer4), each container is a stage and its output the
stage's. Where there is one container alone (VGG, MobileNet), its parts are cut where the size of
their maps changes, and the last part of each run gives the stage's output.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from tulip_ood.errors import ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.blocks import repeated_blocks
from tulip_ood.network.features import Calls
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network

__all__ = ["convolves", "find_stages", "look_at", "map_sizes", "parts_by_name"]

T = TypeVar("T")


def look_at(
    network: Network, inputs: Inputs, looks: Mapping[str, Callable[[Any], T]]
) -> dict[str, T]:
    """Run the network once, and give what a function makes of each named part's output.

    The function is called while the network runs: what comes after may change a tensor in place.

    Args:
        network: The network.
        inputs: As the model takes them.
        looks: Part of the network → a function of its output. Parts that do not run are left out;
            of one that runs several times, the last counts.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
        >>> network = Network(model, make_task("classification"))
        >>> look_at(network, torch.zeros(2, 4), {"0": lambda out: tuple(out.shape)})
        {'0': (2, 9)}
    """
    found: dict[str, T] = {}

    def looking(name: str, function: Callable[[Any], T]) -> Callable[[Any], None]:
        def look(out: Any) -> None:
            found[name] = function(out)

        return look

    network.run(inputs, edits={name: looking(name, f) for name, f in looks.items()})
    return found


def find_stages(network: Network, inputs: Inputs) -> tuple[str, ...]:
    """Names of the parts whose outputs end the stages, in order of execution; empty if none.

    Only outputs [N, C, H, W] of more than one position count, of parts that hold convolutions.

    Args:
        network: The network.
        inputs: A few inputs; the first is run once.

    Example:
        >>> import torch
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(ResNet18Small(10), make_task("classification"))
        >>> find_stages(network, torch.zeros(2, 3, 32, 32))
        ('layer1', 'layer2', 'layer3', 'layer4')
    """
    calls = network.probe(inputs).calls
    groups = repeated_blocks(network.module, calls)
    if len(groups) == 1:
        return _cut(network, inputs, next(iter(groups)), calls)
    ends = {
        container if container in calls.spans else _last(blocks, calls): _last(blocks, calls)
        for container, blocks in groups.items()
    }
    sizes = map_sizes(network, inputs, ends)
    convolve = [name for name in sizes if convolves(network.module.get_submodule(name))]
    return tuple(sorted(convolve, key=lambda name: calls.spans[ends[name]][1]))


def parts_by_name(
    network: Network, inputs: Inputs, patterns: Sequence[str], argument: str
) -> tuple[str, ...]:
    """The parts that ran and fit some globs, in order of execution; refuses a glob without any.

    Args:
        network: The network.
        inputs: A few inputs, to see which parts run.
        patterns: Names, or globs on names.
        argument: What the user calls these patterns, for the message.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
        >>> network = Network(model, make_task("classification"))
        >>> parts_by_name(network, torch.zeros(2, 4), ["[01]"], "layers")
        ('0', '1')
    """
    spans = network.probe(inputs).calls.spans
    chosen: set[str] = set()
    for pattern in patterns:
        hits = fnmatch.filter(spans, pattern)
        if not hits:
            raise ModelError(
                f"{argument} names {pattern!r}, which fits no part of this network that ran; those "
                f"that did: {', '.join(name for name in spans if name)}"
            )
        chosen.update(hits)
    return tuple(sorted(chosen, key=lambda name: spans[name][1]))


def _last(blocks: Iterable[str], calls: Calls) -> str:
    return max(blocks, key=lambda block: calls.spans[block][1])


def _cut(network: Network, inputs: Inputs, container: str, calls: Calls) -> tuple[str, ...]:
    """The last part at each size of maps, among a container's own parts."""
    whole = network.module.get_submodule(container)
    if not convolves(whole):
        return ()
    names = [f"{container}.{key}" if container else key for key, _ in whole.named_children()]
    ran = sorted((name for name in names if name in calls.spans), key=lambda n: calls.spans[n][1])
    sizes = map_sizes(network, inputs, ran)
    last = {size: name for name in ran if (size := sizes.get(name)) is not None}
    return tuple(last.values())


def map_sizes(network: Network, inputs: Inputs, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(H, W) of those parts whose output is [N, C, H, W] with more than one position.

    Args:
        network: The network.
        inputs: A few inputs; the first is run once.
        names: The parts.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
        >>> network = Network(model, make_task("classification"))
        >>> map_sizes(network, torch.zeros(1, 1, 4, 4), ["0", "1"])
        {'0': (2, 2)}
    """

    def size(out: Any) -> tuple[int, int] | None:
        if not isinstance(out, Tensor) or out.ndim != 4 or out.shape[2] * out.shape[3] < 2:
            return None
        return out.shape[2], out.shape[3]

    one = structures.take(inputs, slice(0, 1))
    found = look_at(network, one, dict.fromkeys(names, size))
    return {name: value for name, value in found.items() if value is not None}


def convolves(part: nn.Module) -> bool:
    """Whether a part holds convolutions, so that an output of four dimensions is [N, C, H, W].

    Maps with channels last ([N, H, W, C], in Swin) cannot be told by their shape.

    Example:
        >>> convolves(nn.Sequential(nn.Conv2d(1, 2, 3))), convolves(nn.Linear(2, 2))
        (True, False)
    """
    return any(isinstance(inner, nn.Conv2d) for inner in part.modules())
