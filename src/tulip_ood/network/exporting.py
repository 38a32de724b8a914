"""The network as a graph: everything that touches `torch.export` is here.

What is exported is a copy of the private copy, on the device and in the dtype of the passes, with
any number of rows. The user's module is never exported, and nothing is when this file is imported.
"""

import copy
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from tulip_ood.errors import ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.logits import find_logits
from tulip_ood.network.measures import Look, Looking
from tulip_ood.network.network import Network
from tulip_ood.network.quiet import quiet_export, why_not_exported
from tulip_ood.network.writes import has_writes, without_writes
from tulip_ood.numerics.default_device import where_the_user_is

__all__ = [
    "MOST_ROWS",
    "TESTED",
    "Exported",
    "PartitionError",
    "State",
    "export_network",
    "filled_copy",
    "kind_of",
]

# torch.export changes from release to release; where nobody has tried it, plain passes are right.
TESTED = ("2.11", "2.13")
# cuDNN's convolutions in float32 take no more at once, and PyTorch holds a graph to that.
MOST_ROWS = (1 << 16) - 1

# Exporting patches classes of PyTorch's for as long as it takes: one at a time.
_exporting = fork_safe_lock()
# A graph holds no weights and is good for as long as its network lives, whatever is perturbed. But
# it takes megabytes, and texts come in all lengths: those for a few kinds of input are kept.
_KINDS = 8
_graphs: "weakref.WeakKeyDictionary[Network, dict[Any, Exported]]" = weakref.WeakKeyDictionary()


class PartitionError(ModelError):
    """The network cannot be exported as a graph, or the graph is not the network; says why.

    Example:
        >>> issubclass(PartitionError, ModelError)
        True
    """


@dataclass(frozen=True)
class State:
    """What a placeholder of the graph stands for, other than an input.

    Attributes:
        kind: "parameter", "buffer" or "constant".
        name: As `Network.parameters` has it (tied ones under one name), or as the module has it.

    Example:
        >>> State("parameter", "fc.weight").kind
        'parameter'
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Exported:
    """A network as a graph without side effects.

    Attributes:
        graph_module: ATen operations. Its outputs are the logits as the network gives them,
            where the last linear layer is known what it was fed, what it gave, its weight and bias,
            and then what was found by each of the looks.
        states: What each placeholder stands for, by its name in the graph.
        inputs: The names of the placeholders of the inputs, in the order of `inputs.tensors`.
        constants: Tensors that are neither parameters nor buffers, by name.
        looks: The keys of the looks.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(nn.Linear(4, 3), make_task("classification"))
        >>> sorted(s.name for s in export_network(network, torch.zeros(2, 4)).states.values())
        ['bias', 'weight']
    """

    graph_module: GraphModule
    states: dict[str, State]
    inputs: tuple[str, ...]
    constants: dict[str, Tensor]
    looks: tuple[str, ...] = ()

    @property
    def returned(self) -> int:
        """How many outputs there are."""
        whole: Any = self.graph_module.graph.output_node().args[0]
        return len(whole)


def export_network(network: Network, example: Inputs, looks: Sequence[Look] = ()) -> Exported:
    """The network's graph, for any number of inputs of the example's kind; made once.

    Args:
        network: Is looked at with the example, if it has not been yet.
        example: At least one input; numbers do not matter, only shapes and dtypes.
        looks: What else is to be found on the way.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> class Moody(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x) if x.sum() > 0 else x
        >>> network = Network(Moody(3, 3), make_task("classification"))
        >>> try:
        ...     export_network(network, torch.ones(2, 3))
        ... except PartitionError as error:
        ...     print(str(error)[:40])
        the network Moody cannot be exported: it
    """
    _check_version()
    network.probe(example)
    if network.calls_user_hooks:
        raise PartitionError("the network's output is changed by hooks, which no graph can follow")
    with _exporting:
        graphs = _graphs.setdefault(network, {})
        kind = (kind_of(network, example), tuple(look.key for look in looks))
        found = graphs.pop(kind, None) or _export(network, example, looks)
        graphs[kind] = found  # the last one used stands last
        while len(graphs) > _KINDS:
            del graphs[next(iter(graphs))]
        return found


def kind_of(network: Network, inputs: Inputs) -> tuple[Any, ...]:
    """What a graph is made for: device, dtype, and what inputs are, except for their number.

    Floating inputs are cast to the dtype of the passes, so that their own does not count.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(nn.Linear(4, 3), make_task("classification"))
        >>> kind_of(network, torch.zeros(2, 4)) == kind_of(network, torch.zeros(9, 4).double())
        True
    """
    return (network.device, network.dtype, *structures.signature(inputs, network.dtype))


def _export(network: Network, example: Inputs, looks: Sequence[Look]) -> Exported:
    module, canonical = filled_copy(network)
    rows = network.to_device(_enough_rows(example, module))
    whole = _Whole(module, rows, network, looks)
    try:
        # Not in the user's autocast or inference mode: passes know neither.
        off = torch.inference_mode(False), torch.autocast(network.device.type, enabled=False)
        with off[0], off[1], torch.no_grad(), quiet_export():
            tensors = tuple(t for _, t in structures.tensors(rows))
            program, graph_module = _exported(whole, tensors)
    except Exception as error:
        raise PartitionError(
            f"the network {type(network.module).__name__} cannot be exported: "
            f"{why_not_exported(error)}"
        ) from error
    exported = _described(program, graph_module, canonical)
    return replace(exported, looks=tuple(look.key for look in looks))


def _check_version() -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TESTED:
        raise PartitionError(
            f"graphs of networks were tested with PyTorch {' and '.join(TESTED)}; this is {version}"
        )


# ------------------------------------------------------------------------- what is exported


def filled_copy(network: Network) -> tuple[nn.Module, dict[str, str]]:
    """The skeleton with its parameters in it, and every parameter's name → its canonical name.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> module, canonical = filled_copy(Network(nn.Linear(4, 3), make_task("classification")))
        >>> module.weight.shape, canonical
        (torch.Size([3, 4]), {'weight': 'weight', 'bias': 'bias'})
    """
    with network.lock:  # while a pass runs, the skeleton holds the parameters of that pass
        memo: dict[int, Any] = {}
        for name, placeholder in network.module.named_parameters():
            memo[id(placeholder)] = nn.Parameter(network.parameters[name], requires_grad=False)
        for buffer in network.module.buffers():
            memo[id(buffer)] = buffer
        for part in network.module.modules():
            # Ours that watch are not to be copied; those that compute weights are.
            for hooks in (part._forward_hooks, part._forward_pre_hooks):
                kept = ((k, h) for k, h in hooks.items() if not _is_ours(h))
                memo[id(hooks)] = OrderedDict(kept)
        module = copy.deepcopy(network.module, memo)
    first: dict[int, str] = {id(p): name for name, p in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return module, {name: first[id(p)] for name, p in every}


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(__name__.partition(".")[0] + ".")


def _enough_rows(example: Inputs, module: nn.Module) -> Inputs:
    """As many rows as no other dimension has: a coincidence would be taken for a rule."""
    held = itertools.chain(module.parameters(), module.buffers())
    sizes = {size for tensor in held for size in tensor.shape}
    sizes |= {size for _, t in structures.tensors(example) for size in t.shape[1:]}
    n = next(n for n in itertools.count(5, 2) if n not in sizes)
    index = torch.arange(n) % structures.count_rows(example)

    def repeated(t: Tensor) -> Tensor:
        return t.detach()[index.to(t.device)].contiguous()

    return structures.map_tensors(repeated, example)


class _TracingError(Exception):
    """The network's own code has failed while it was traced."""


class _Whole(nn.Module):
    """From the tensors of the inputs to all that a pass gives."""

    def __init__(
        self, module: nn.Module, rows: Inputs, network: Network, looks: Sequence[Look]
    ) -> None:
        super().__init__()
        self.module = module
        self._rows = rows
        self._place = {id(t): i for i, (_, t) in enumerate(structures.tensors(rows))}
        self._output = network.output_function
        self._tapped: tuple[Any, ...] = ()
        head = network.known_probe.head
        if head is not None:
            module.get_submodule(head).register_forward_hook(self._tap)
        self._looking = Looking(looks)
        for name, keep in self._looking.edits.items():
            module.get_submodule(name).register_forward_hook(_hearing(keep))

    def _tap(self, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._tapped = (args[0], out, layer.weight, layer.bias)

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        inputs = structures.map_tensors(lambda t: tensors[self._place[id(t)]], self._rows)
        args, kwargs = structures.arguments(inputs)
        try:
            logits = find_logits(self.module(*args, **kwargs), self._output)
        except Exception as error:  # PyTorch would print the graph so far if it saw its own
            raise _TracingError(why_not_exported(error)) from error
        tapped, self._tapped = self._tapped, ()
        return (logits, *tapped, *self._looking.measured().values())


def _hearing(keep: Callable[[Any], None]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(layer: nn.Module, args: Any, out: Any) -> None:
        keep(out)

    return hook


# ------------------------------------------------------------------------------- the program


def _exported(whole: nn.Module, tensors: tuple[Tensor, ...]) -> tuple[Any, GraphModule]:
    """The program, and its graph without writes.

    A part of the graph that is run again and again must not write to what it is handed.
    """
    rows = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    shapes = (tuple({0: rows} for _ in tensors),)
    with where_the_user_is():
        program: Any = torch.export.export(whole, (tensors,), dynamic_shapes=shapes, strict=False)
    graph_module = without_writes(program.graph_module)
    if graph_module is None:  # PyTorch can always do it, by tracing everything once more
        program = program.run_decompositions({})
        graph_module = program.graph_module
    return program, graph_module


def _described(program: Any, graph_module: GraphModule, canonical: dict[str, str]) -> Exported:
    states, inputs = {}, []
    constants = dict(program.constants)
    for spec in program.graph_signature.input_specs:
        kind, place = spec.kind.name, spec.arg.name
        if kind == "USER_INPUT":
            inputs.append(place)
        elif kind == "PARAMETER":
            states[place] = State("parameter", canonical[_inner(spec.target)])
        elif kind == "BUFFER":
            states[place] = State("buffer", _inner(spec.target))
        elif kind == "CONSTANT_TENSOR":
            states[place] = State("constant", spec.target)
        else:
            raise PartitionError(f"the network's graph holds something unknown: {kind.lower()}")
    outputs = {spec.kind.name for spec in program.graph_signature.output_specs}
    if outputs != {"USER_OUTPUT"} or has_writes(graph_module):
        raise PartitionError("the network writes to its own tensors in every pass")
    tensors = {name: value for name, value in constants.items() if isinstance(value, Tensor)}
    return Exported(graph_module, states, tuple(inputs), tensors)


def _inner(name: str) -> str:
    return name.removeprefix("module.")
