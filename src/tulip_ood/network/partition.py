"""The network in two: a *trunk* that no perturbed parameter reaches, and the *tail* behind it.

The trunk is the same in the base pass, the M noisy passes and the drift pass: it is run once for a
batch, and what the tail needs of it, the *frontier*, is handed to every pass. The cut follows the
graph of operations, not modules, so that any scope and any network that can be exported will do.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tulip_ood.errors import InputError, ModelError, in_one_line
from tulip_ood.network import guards
from tulip_ood.network import inputs as structures
from tulip_ood.network.cutting import Part, split
from tulip_ood.network.exporting import (
    MOST_ROWS,
    Exported,
    PartitionError,
    export_network,
    kind_of,
)
from tulip_ood.network.features import Head, picked_rows
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.marks import same_bits
from tulip_ood.network.measures import Look, View, run_looking
from tulip_ood.network.network import Network, Output
from tulip_ood.network.ready import Lowering
from tulip_ood.wording import counted

__all__ = ["Frontier", "Partition", "Weights"]

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

    Example:
        >>> Frontier((torch.zeros(2, 3),), 2).nbytes
        24
    """

    values: tuple[Any, ...]
    rows: int

    @property
    def nbytes(self) -> int:
        """The memory that the values take."""
        return sum(value.nbytes for value in self.values if isinstance(value, Tensor))


@dataclass(frozen=True)
class Weights:
    """The parameters and buffers of one pass, ready for the tail.

    Attributes:
        values: What the tail is called with after the frontier.

    Example:
        >>> len(Weights((torch.zeros(2, 3),)).values)
        1
    """

    values: tuple[Any, ...]


class Partition:
    """A network, cut where the perturbed parameters begin. Made by `Partition.of`.

    Any number of threads may use it at once.

    Attributes:
        network: The network; weights and buffers are taken from it in every call.
        names: The parameters that may differ between passes.
        looks: The keys of what is found in the base pass beside the outputs.
        outputs: How many values a pass has; what is found comes after them.
        trunk_share: The share of the multiplications of a pass that the trunk does, 0 to 1.
        row_bytes: What the frontier of one input takes.
        exact: Whether outputs were the network's to the last bit, for those that it was tried on.
        parts: Trunk and tail, as graphs; and the tail of the base pass, where that is another.
        lowering: What was done to make them faster.

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
        self,
        network: Network,
        names: frozenset[str],
        exported: Exported,
        example: Inputs,
        lowering: Lowering | None = None,
    ) -> None:
        self.network = network
        self.names = names
        self.lowering = lowering or Lowering(fold=False, in_place=False)
        self._constants = exported.constants
        self._trunk, self._tail, self._base_tail = split(exported, names, self.lowering)
        self.looks = exported.looks
        self.outputs = exported.returned - len(self.looks)
        self._alike = self._base_tail.prepares_like(self._tail)
        self.parts = (self._trunk, self._tail, *([self._base_tail] if self.looks else []))
        self._kind = kind_of(network, example)
        self._made: dict[str, tuple[int, Weights]] = {}
        self.exact = True
        self.trunk_share = 0.0
        self.row_bytes = 0

    @staticmethod
    def of(
        network: Network,
        names: Collection[str],
        example: Inputs,
        lowering: Lowering | None = None,
        looks: Sequence[Look] = (),
    ) -> "Partition":
        """Export a network and cut it; refuses with a `PartitionError`, in one line.

        The graph is compared with the network on a few of the example's inputs, with the network's
        own parameters and with others.

        Args:
            network: Is looked at with the example, if it has not been yet.
            names: The parameters that will be perturbed.
            example: Inputs as the model takes them; others may be more or fewer, of its shape.
            lowering: What is done to make it faster; nothing by default, so that the arithmetic is
                the network's to the last bit.
            looks: What is to be found in the base pass, beside the outputs.
        """
        unknown = sorted(set(names) - set(network.parameters))
        if unknown:
            raise InputError(f"the network has no parameter {unknown[0]}")
        rows = guards.few_rows(example)
        exported = export_network(network, rows, looks)
        partition = Partition(network, frozenset(names), exported, rows, lowering)
        partition._check(rows, looks)
        partition._measure(structures.take(rows, slice(0, 1)))
        return partition

    def fits(self, inputs: Inputs) -> bool:
        """Whether the graph is made for such inputs, on the device where the network now is."""
        few_enough = structures.count_rows(inputs) <= MOST_ROWS
        return few_enough and kind_of(self.network, inputs) == self._kind

    def brought(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """The tensors of some inputs, on the device, and otherwise as they are."""
        if not self.fits(inputs):
            raise InputError("the network was cut for inputs of another kind: make a new partition")
        return tuple(t.to(self.network.device) for _, t in structures.tensors(inputs))

    def laid_out(self, brought: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The same in the dtype and layout that the trunk takes."""
        return tuple(
            t.contiguous(
                memory_format=torch.channels_last
                if self.lowering.channels_last and t.ndim == 4
                else torch.contiguous_format
            )
            for t in self.network.to_device(tuple(brought))
        )

    def handed(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """The tensors of some inputs, as the trunk takes them."""
        return self.laid_out(self.brought(inputs))

    def all_values(
        self,
        handed: tuple[Tensor, ...],
        weights: Sequence[Weights],
        views: Iterable[View] = (),
    ) -> list[tuple[Any, ...]]:
        """From `handed` to the values of every pass; see `output`.

        Args:
            handed: The inputs, as the trunk takes them.
            weights: Of every pass, ready; the network's own first.
            views: Whose plain passes come at the end.
        """
        own, *moved = weights
        with self._quietly():
            trunk = self._current("trunk").values
            frontier = self._trunk.run(*handed, *trunk)
            base = self._current("base tail") if self.looks else own
            values = [self._base_tail.run(*frontier, *base.values)]
            values += [self._tail.run(*frontier, *one.values) for one in moved]
            for view in views:
                changed = (t for _, t in structures.tensors(view.change(handed)))
                seen = self._trunk.run(*self.laid_out(changed), *trunk)
                values.append(self._tail.run(*seen, *own.values))
            return values

    def trunk(self, inputs: Inputs) -> Frontier:
        """What all passes over these inputs have in common."""
        values = self._call(self._trunk, self.handed(inputs), self._current("trunk"))
        return Frontier(values, structures.count_rows(inputs))

    def weights(self, parameters: Mapping[str, Tensor] | None = None) -> Weights:
        """Parameters made ready for the tail (default: the network's own)."""
        own = self._current("tail")
        if parameters is None:
            return own
        with self._quietly():
            moved = self._tail.prepare(*self._states(self._tail, parameters))
        # What no perturbed parameter has a part in is held once for all passes.
        kept = zip(self._tail.moving, moved, own.values, strict=True)
        return Weights(tuple(new if moves else old for moves, new, old in kept))

    def base_tail(self, frontier: Frontier) -> tuple[Output, dict[str, Tensor]]:
        """The rest of the base pass, and what was found in it, by key."""
        values = self._call(self._base_tail, frontier.values, self._current("base tail"))
        return self.output(values, frontier.rows), self.looked(values)

    def looked(self, values: tuple[Any, ...]) -> dict[str, Tensor]:
        """What was found in the base pass, by key."""
        return dict(zip(self.looks, values[self.outputs :], strict=True))

    def tail(
        self, frontier: Frontier, parameters: Mapping[str, Tensor] | Weights | None = None
    ) -> Output:
        """The rest of a pass, with the given parameters (default: the network's own)."""
        if not isinstance(parameters, Weights):
            parameters = self.weights(parameters)
        return self.output(self._call(self._tail, frontier.values, parameters), frontier.rows)

    def output(self, values: tuple[Any, ...], rows: int) -> Output:
        """What the values of a tail mean."""
        raw, *tapped = values[: self.outputs]
        logits = self.network.task.outputs(raw)
        if logits.shape[0] != rows:
            raise ModelError(
                f"the network returned {counted(logits.shape[0], 'output')} for "
                f"{counted(rows, 'input')}: every input needs an output of its own"
            )
        if not tapped:
            return Output(logits, None, None)
        features, head = _fed(logits, *tapped)
        if features.shape[0] != rows:
            return Output(logits, None, None)
        return Output(logits, features, head)

    def _current(self, which: str) -> Weights:
        """The network's own parameters, made ready; again only where it has taken new ones."""
        if which == "base tail" and self._alike:
            which = "tail"
        part = {"trunk": self._trunk, "tail": self._tail, "base tail": self._base_tail}[which]
        taken, known = self.network.refreshed, self._made.get(which)
        if known is None or known[0] != taken:
            with self._quietly():
                states = self._states(part, self.network.parameters)
                known = taken, Weights(tuple(part.prepare(*states)))
            self._made[which] = known
        return known[1]

    def _states(self, part: Part, parameters: Mapping[str, Tensor]) -> Iterator[Tensor]:
        for state in part.states:
            if state.kind == "parameter":
                yield parameters[state.name]
            elif state.kind == "buffer":
                yield self.network.module.get_buffer(state.name)
            else:
                yield self._constants[state.name]

    def _call(self, part: Part, handed: Iterable[Any], weights: Weights) -> tuple[Any, ...]:
        with self._quietly():
            values: tuple[Any, ...] = part.run(*handed, *weights.values)
            return values

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Neither gradients nor autocast nor TF32; costs less once than for every pass."""
        device = self.network.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False), full_precision():
            yield

    # ------------------------------------------------------------------------- the first look

    def _check(self, rows: Inputs, looks: Sequence[Look]) -> None:
        """Refuse a graph that gives other outputs than the network, or finds something else."""
        shaken = guards.shaken({name: self.network.parameters[name] for name in self.names})
        moved = {**self.network.parameters, **shaken}
        for some in (rows, structures.take(rows, slice(0, 1))):
            try:
                frontier = self.trunk(some)
                base, found = run_looking(self.network, some, None, looks)
                graph_base, graph_found = self.base_tail(frontier)
                pairs = [
                    (graph_base, base),
                    (self.tail(frontier), base),
                    (self.tail(frontier, moved), self.network.run(some, moved)),
                ]
            except RuntimeError as error:
                raise PartitionError(
                    f"the network's graph does not run: {in_one_line(error)}"
                ) from error
            for graph, network in pairs:
                _check_close(graph.logits, network.logits)
                self.exact &= same_bits(graph.logits, network.logits)
                if network.features is not None and graph.features is not None:
                    _check_close(graph.features, network.features)
                    self.exact &= same_bits(graph.features, network.features)
            for key, value in found.items():
                # Found in passes of the network's dtype, whatever it was kept in.
                _check_close(graph_found[key], value, self.network.dtype)
                self.exact &= same_bits(graph_found[key], value)

    def _measure(self, row: Inputs) -> None:
        with FlopCounterMode(display=False) as trunk:
            frontier = self.trunk(row)
        with FlopCounterMode(display=False) as tail:
            self.tail(frontier)
        counts = [trunk.get_total_flops(), tail.get_total_flops()]
        self.trunk_share = counts[0] / sum(counts) if sum(counts) else 0.0
        self.row_bytes = frontier.nbytes


# ----------------------------------------------------------------------------------- values


def _fed(
    logits: Tensor, features: Tensor, out: Any, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Head]:
    """As `FeatureTap.pop` gives it."""
    place = picked_rows(out, logits) if isinstance(out, Tensor) else None
    if place is not None:
        features = features[torch.arange(len(features), device=features.device), place]
    weight = weight.flatten(1)
    if bias is None:
        bias = weight.new_zeros(len(weight))
    return features.flatten(1), Head(weight, bias)


def _check_close(graph: Tensor, network: Tensor, dtype: torch.dtype | None = None) -> None:
    if graph.shape != network.shape:
        raise PartitionError(
            f"the network's graph gives {list(graph.shape)}, the network {list(network.shape)}"
        )
    same = (graph == network) | (graph.isnan() & network.isnan())
    apart = torch.where(same, 0.0, (graph.double() - network.double()).abs())
    scale = float(network[network.isfinite()].abs().max()) if network.isfinite().any() else 0.0
    worst = float(apart.nan_to_num(torch.inf).max()) if apart.numel() else 0.0
    if worst > _CLOSE.get(dtype or network.dtype, _CLOSE_HALF) * scale:
        raise PartitionError(
            f"the network's graph gives other outputs than the network (by {worst:.2g} where they "
            f"are up to {scale:.2g}): it depends on something that no graph shows"
        )
