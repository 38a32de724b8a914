"""Blocks: what a network repeats, told by its structure.

A block is one of several siblings of the same class in a Sequential, ModuleList or ModuleDict.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

from torch import nn

from tulip_ood.network.features import Calls

__all__ = ["repeated_blocks"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(module: nn.Module, calls: Calls) -> dict[str, list[str]]:
    """Container → its repeated blocks that ran, innermost ones only.

    Blocks with parts of their own first (a residual block, a transformer layer); where there are
    none, Sequentials that are repeated; where there are none either, single layers.

    Args:
        module: The network.
        calls: Which part ran when.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        >>> repeated_blocks(net, Calls({"0": (0, 1), "1": (2, 3), "2": (4, 5)}))
        {'': ['0', '2']}
    """
    for wanted in (_is_block, _is_sequential, _is_layer):
        if found := _innermost(_siblings(module, calls, wanted)):
            return found
    return {}


def _is_block(part: nn.Module) -> bool:
    return any(True for _ in part.children()) and not isinstance(part, _CONTAINERS)


def _is_sequential(part: nn.Module) -> bool:
    return isinstance(part, nn.Sequential)


def _is_layer(part: nn.Module) -> bool:
    return not any(True for _ in part.children())


def _siblings(
    module: nn.Module, calls: Calls, wanted: Callable[[nn.Module], bool]
) -> dict[str, list[str]]:
    """Container → those of its parts that ran, are wanted, and have others of their class."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, container in module.named_modules():
        if not isinstance(container, _CONTAINERS):
            continue
        by_class: dict[type[nn.Module], list[str]] = defaultdict(list)
        for key, child in container.named_children():
            full = f"{name}.{key}" if name else key
            ran = full in calls.spans and any(True for _ in child.parameters())
            if ran and wanted(child):
                by_class[type(child)].append(full)
        for siblings in by_class.values():
            if len(siblings) > 1:
                groups[name] += siblings
    return groups


def _innermost(groups: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Without the blocks that have other blocks inside."""
    every = [block for blocks in groups.values() for block in blocks]
    return {
        name: kept
        for name, blocks in groups.items()
        if (kept := [b for b in blocks if not any(o.startswith(b + ".") for o in every)])
    }
