"""The cut: which operations belong to the trunk of a graph, and which to its tail.

Everything that a perturbed parameter reaches is in the tail; the cut follows the graph of
operations, not modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tulip_ood.network.exporting import Exported, State
from tulip_ood.network.ready import Lowering, divide

__all__ = ["Part", "split"]


@dataclass
class Part:
    """One half of the graph: called with what is handed over and then what is ready.

    Attributes:
        prepare: From the states to what is ready.
        run: From what is handed over and what is ready to what the other half is handed.
        states: Which parameters, buffers and constants the half rests on.
        moving: Which of what is ready differs between passes.

    Example:
        >>> Part(None, None, (), ()).states
        ()
    """

    prepare: Callable[..., Any]
    run: Callable[..., Any]
    states: tuple[State, ...]
    moving: tuple[bool, ...]

    def prepares_like(self, other: "Part") -> bool:
        """Whether the same weights are ready for both."""
        mine, theirs = (getattr(part.prepare, "code", None) for part in (self, other))
        return self.states == other.states and mine is not None and mine == theirs


def split(exported: Exported, names: frozenset[str], lowering: Lowering) -> tuple[Part, Part, Part]:
    """Trunk, tail, and the tail of the base pass, which looks around as well.

    Args:
        exported: The whole.
        names: The parameters that may differ between passes.
        lowering: What is done to make them faster.

    Example:
        >>> from tulip_ood.network.exporting import export_network
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> layers = torch.nn.Linear(4, 9), torch.nn.Linear(9, 3)
        >>> network = Network(torch.nn.Sequential(*layers), make_task("classification"))
        >>> exported = export_network(network, torch.zeros(2, 4))
        >>> trunk, tail, _ = split(exported, frozenset(["1.bias"]), Lowering())
        >>> [state.name for state in trunk.states], [state.name for state in tail.states]
        (['0.weight', '0.bias'], ['1.weight', '1.bias'])
    """
    nodes = list(exported.graph_module.graph.nodes)
    behind: set[fx.Node] = set()
    for node in nodes:
        state = exported.states.get(node.name) if node.op == "placeholder" else None
        perturbed = state is not None and state.kind == "parameter" and state.name in names
        if perturbed or node.op == "output" or not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)

    def is_state(node: fx.Node) -> bool:
        return node.op == "placeholder" and node.name in exported.states

    def is_attribute(node: fx.Node) -> bool:  # a graph inside the graph: either part has its own
        return node.op == "get_attr"

    tail_nodes = [node for node in nodes if node in behind and node.op != "placeholder"]
    frontier: dict[fx.Node, None] = {}
    for node in tail_nodes:
        for used in node.all_input_nodes:
            if used not in behind and not is_state(used) and not is_attribute(used):
                frontier[used] = None
    by_name = {node.name: node for node in nodes}
    given = [by_name[name] for name in exported.inputs]
    trunk_nodes = [n for n in nodes if n not in behind and n.op not in ("placeholder", "get_attr")]
    trunk = _part(exported, given, trunk_nodes, tuple(frontier), lowering, names)
    tail, base_tail = (
        _part(exported, list(frontier), tail_nodes, returned, lowering, names)
        for returned in _returned(exported, nodes[-1])
    )
    return trunk, tail, base_tail if exported.looks else tail


def _returned(exported: Exported, output: fx.Node) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a perturbed pass gives, and what the base pass does."""
    whole: Any = output.args[0]
    return tuple(whole[: len(whole) - len(exported.looks)]), tuple(whole)


def _part(
    exported: Exported,
    given: list[fx.Node],
    nodes: list[fx.Node],
    returned: tuple[Any, ...],
    lowering: Lowering,
    names: frozenset[str],
) -> Part:
    """Some nodes as a function of the given ones, and of the states that they use."""
    used = {source: None for node in nodes for source in node.all_input_nodes}
    states = [n for n in used if n.op == "placeholder" and n.name in exported.states]
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in (*given, *states):
        new[node] = graph.placeholder(node.name)
        new[node].meta = _noted(node)
    for node in used:
        if node.op == "get_attr":
            new[node] = graph.node_copy(node)
    for node in nodes:
        if node.op == "output":
            continue
        new[node] = graph.node_copy(node, new.__getitem__)
        new[node].meta = _noted(node)
        if new[node].target is torch.ops.aten.view.default:
            # Kernels may lay out what they return in another way than export foresaw.
            new[node].target = torch.ops.aten.reshape.default
    graph.output(fx.map_arg(returned, new.__getitem__))
    graph.eliminate_dead_code()  # what nobody looks at must not stand in the way of fusing
    prepare, run = divide(exported.graph_module, graph, len(given), lowering)
    kept = tuple(exported.states[node.name] for node in states)
    return Part(prepare, run, kept, _moving(prepare.graph, kept, names))


def _moving(graph: fx.Graph, states: tuple[State, ...], names: frozenset[str]) -> tuple[bool, ...]:
    """Which outputs of the graph depend on one of the named parameters."""
    places = (node for node in graph.nodes if node.op == "placeholder")
    reached = {
        place
        for place, state in zip(places, states, strict=True)
        if state.kind == "parameter" and state.name in names
    }
    for node in graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    returned: Any = graph.output_node().args[0]
    return tuple(node in reached for node in returned)


def _noted(node: fx.Node) -> dict[str, Any]:
    """What is worth knowing of a node's value, without the value."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return {}
    shape = tuple(str(size) for size in value.shape)
    return {"shape": shape, "ndim": value.ndim, "dtype": value.dtype}
