"""The network in two: a *trunk* that no perturbed parameter reaches, and the *tail* behind it.

The trunk is the same in the base pass, the M noisy passes and the drift pass: it is run once for a
batch, and what the tail needs of it, the *frontier*, is handed to every pass. The cut follows the
graph of operations, not modules, so that any scope and any network that can be exported will do.
"""

import logging
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import FlopCounterMode

from tulip_ood.errors import InputError, ModelError
from tulip_ood.network import guards
from tulip_ood.network import inputs as structures
from tulip_ood.network.exporting import Exported, PartitionError, State, export_network, kind_of
from tulip_ood.network.features import Head, _picked
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network, Output

__all__ = ["Frontier", "Partition", "partition_or_none"]

_log = logging.getLogger("tulip_ood")
_told: "weakref.WeakSet[Network]" = weakref.WeakSet()
# How far a graph may be from its network, in parts of the outputs' range: other kernels round in
# another way, and anything that is worse than that is another network.
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
_CLOSE_HALF = 3e-2


@dataclass(frozen=True)
class Frontier:
    """What the trunk leaves of a batch for the tail.

    Attributes:
        values: Tensors, and sizes that depend on the number of rows.
        rows: How many inputs there were.
        buffers: The network's buffers at that moment, by name.

    Example:
        >>> Frontier((torch.zeros(2, 3),), 2, {}).nbytes
        24
    """

    values: tuple[Any, ...]
    rows: int
    buffers: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """The memory that the values take."""
        return sum(value.nbytes for value in self.values if isinstance(value, Tensor))


@dataclass(frozen=True)
class _Part:
    """One half of the graph: called with what is handed over and then its own states."""

    run: fx.GraphModule
    states: tuple[State, ...]


class Partition:
    """A network, cut where the perturbed parameters begin. Made by `Partition.of`.

    Any number of threads may use it at once.

    Attributes:
        network: The network; weights and buffers are taken from it in every call.
        names: The parameters that may differ between passes.
        trunk_share: The share of the multiplications of a pass that the trunk does, 0 to 1.
        row_bytes: What the frontier of one input takes.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> layers = torch.nn.Linear(4, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10)
        >>> network = Network(torch.nn.Sequential(*layers), make_task("classification"))
        >>> partition = Partition.of(network, ["2.weight", "2.bias"], torch.rand(2, 4))
        >>> frontier = partition.trunk(torch.rand(7, 4))
        >>> partition.tail(frontier).logits.shape, round(partition.trunk_share, 2)
        (torch.Size([7, 10]), 0.29)
    """

    def __init__(
        self, network: Network, names: frozenset[str], exported: Exported, example: Inputs
    ) -> None:
        self.network = network
        self.names = names
        self._constants = exported.constants
        self._trunk, self._tail, self._buffers = _split(exported, names)
        self._kind = kind_of(network, example)
        self.trunk_share = 0.0
        self.row_bytes = 0

    @staticmethod
    def of(network: Network, names: Collection[str], example: Inputs) -> "Partition":
        """Export a network and cut it; refuses with a `PartitionError`, in one line.

        The graph is compared with the network on a few of the example's inputs, with the network's
        own parameters and with others.

        Args:
            network: Is looked at with the example, if it has not been yet.
            names: The parameters that will be perturbed.
            example: Inputs as the model takes them; others may be more or fewer, of its shape.
        """
        unknown = sorted(set(names) - set(network.parameters))
        if unknown:
            raise InputError(f"the network has no parameter {unknown[0]}")
        rows = guards.few_rows(example)
        partition = Partition(network, frozenset(names), export_network(network, rows), rows)
        partition._check(rows)
        partition._measure(structures.take(rows, slice(0, 1)))
        return partition

    def fits(self, inputs: Inputs) -> bool:
        """Whether the graph is made for such inputs, on the device where the network now is."""
        return kind_of(self.network, inputs) == self._kind

    def trunk(self, inputs: Inputs) -> Frontier:
        """What all passes over these inputs have in common."""
        if not self.fits(inputs):
            raise InputError("the network was cut for inputs of another kind: make a new partition")
        moved = self.network.to_device(inputs)
        buffers = {name: self.network.module.get_buffer(name) for name in self._buffers}
        handed = [t.contiguous() for _, t in structures.tensors(moved)]
        values = self._call(self._trunk, handed, self.network.parameters, buffers)
        return Frontier(values, structures.count_rows(moved), buffers)

    def tail(self, frontier: Frontier, parameters: Mapping[str, Tensor] | None = None) -> Output:
        """The rest of a pass, with the given parameters (default: the network's own)."""
        chosen = self.network.parameters if parameters is None else parameters
        raw, *tapped = self._call(self._tail, frontier.values, chosen, frontier.buffers)
        logits = self.network.task.outputs(raw)
        if logits.shape[0] != frontier.rows:
            raise ModelError(
                f"the network returned {logits.shape[0]} outputs for {frontier.rows} inputs: every "
                f"input needs an output of its own"
            )
        if not tapped:
            return Output(logits, None, None)
        features, head = _fed(logits, *tapped)
        if features.shape[0] != frontier.rows:
            return Output(logits, None, None)
        return Output(logits, features, head)

    def _call(
        self,
        part: _Part,
        handed: Iterable[Any],
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> tuple[Any, ...]:
        kinds = {"parameter": parameters, "buffer": buffers, "constant": self._constants}
        states = (kinds[state.kind][state.name] for state in part.states)
        device = self.network.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False), full_precision():
            values: tuple[Any, ...] = part.run(*handed, *states)
        return values

    # ------------------------------------------------------------------------- the first look

    def _check(self, rows: Inputs) -> None:
        """Refuse a graph that gives other outputs than the network."""
        shaken = guards.shaken({name: self.network.parameters[name] for name in self.names})
        moved = {**self.network.parameters, **shaken}
        for some in (rows, structures.take(rows, slice(0, 1))):
            try:
                frontier = self.trunk(some)
                pairs = [
                    (self.tail(frontier, parameters), self.network.run(some, parameters))
                    for parameters in (None, moved)
                ]
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise PartitionError(f"the network's graph does not run: {reason}") from error
            for graph, network in pairs:
                _check_close(graph.logits, network.logits)
                if network.features is not None and graph.features is not None:
                    _check_close(graph.features, network.features)

    def _measure(self, row: Inputs) -> None:
        with FlopCounterMode(display=False) as trunk:
            frontier = self.trunk(row)
        with FlopCounterMode(display=False) as tail:
            self.tail(frontier)
        counts = [trunk.get_total_flops(), tail.get_total_flops()]
        self.trunk_share = counts[0] / sum(counts) if sum(counts) else 0.0
        self.row_bytes = frontier.nbytes


def partition_or_none(
    network: Network, names: Collection[str], example: Inputs
) -> Partition | None:
    """`Partition.of`, or None where that cannot be; why is logged, once for a network.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> partition_or_none(network, ["bias"], torch.rand(2, 4)).names
        frozenset({'bias'})
    """
    try:
        return Partition.of(network, names, example)
    except PartitionError as error:
        if network not in _told:
            _told.add(network)
            _log.warning("passes run plainly, each through the whole network: %s", error)
        return None


# --------------------------------------------------------------------------------- the cut


def _split(exported: Exported, names: frozenset[str]) -> tuple[_Part, _Part, set[str]]:
    """Trunk and tail, and the names of the buffers that either needs."""
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
    trunk = _part(exported, given, trunk_nodes, tuple(frontier))
    tail = _part(exported, list(frontier), tail_nodes, None)
    buffers = {s.name for part in (trunk, tail) for s in part.states if s.kind == "buffer"}
    return trunk, tail, buffers


def _part(
    exported: Exported,
    given: list[fx.Node],
    nodes: list[fx.Node],
    returned: tuple[fx.Node, ...] | None,
) -> _Part:
    """Some nodes as a function of the given ones, and of the states that they use."""
    used = {source: None for node in nodes for source in node.all_input_nodes}
    states = [n for n in used if n.op == "placeholder" and n.name in exported.states]
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in (*given, *states):
        new[node] = graph.placeholder(node.name)
    for node in used:
        if node.op == "get_attr":
            new[node] = graph.node_copy(node)
    for node in nodes:
        if node.op == "output":
            graph.output(fx.map_arg(node.args[0], new.__getitem__))
            continue
        new[node] = graph.node_copy(node, new.__getitem__)
        new[node].meta = {}
        if new[node].target is torch.ops.aten.view.default:
            # Kernels may lay out what they return in another way than export foresaw.
            new[node].target = torch.ops.aten.reshape.default
    if returned is not None:
        graph.output(tuple(new[node] for node in returned))
    graph.eliminate_dead_code()
    run = fx.GraphModule(exported.graph_module, graph)
    return _Part(run, tuple(exported.states[node.name] for node in states))


# ----------------------------------------------------------------------------------- values


def _fed(
    logits: Tensor, features: Tensor, out: Any, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Head]:
    """As `FeatureTap.pop` gives it."""
    place = _picked(out, logits) if isinstance(out, Tensor) else None
    if place is not None:
        features = features[torch.arange(len(features), device=features.device), place]
    weight = weight.flatten(1)
    if bias is None:
        bias = weight.new_zeros(len(weight))
    return features.flatten(1), Head(weight, bias)


def _check_close(graph: Tensor, network: Tensor) -> None:
    if graph.shape != network.shape:
        raise PartitionError(
            f"the network's graph gives {list(graph.shape)}, the network {list(network.shape)}"
        )
    same = (graph == network) | (graph.isnan() & network.isnan())
    apart = torch.where(same, 0.0, (graph.double() - network.double()).abs())
    scale = float(network[network.isfinite()].abs().max()) if network.isfinite().any() else 0.0
    worst = float(apart.nan_to_num(torch.inf).max()) if apart.numel() else 0.0
    if worst > _CLOSE.get(network.dtype, _CLOSE_HALF) * scale:
        raise PartitionError(
            f"the network's graph gives other outputs than the network (by {worst:.2g} where they "
            f"are up to {scale:.2g}): it depends on something that no graph shows"
        )
