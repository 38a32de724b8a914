"""From a torch module to an ONNX function, and an ONNX function cut in two."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tulip_ood.errors import ModelError
from tulip_ood.network.quiet import quiet_export, why_not_exported

__all__ = ["DOMAIN", "Cut", "OnnxFunction", "cut", "onnx_function", "without_idle"]

DOMAIN = "tulip"


class OnnxFunction(NamedTuple):
    """Operations between named values.

    Attributes:
        name: What the function is called.
        inputs: The names of its arguments, in their order.
        outputs: The names of its results.
        nodes: The operations, each behind those that it needs.
        opset: The version of the operations.

    Example:
        >>> OnnxFunction("f", ["x"], ["x"], [], 20).name
        'f'
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Any]
    opset: int

    def proto(self) -> Any:
        """As ONNX writes it."""
        from onnx import helper

        versions = [helper.make_opsetid("", self.opset)]
        return helper.make_function(
            DOMAIN, self.name, self.inputs, self.outputs, self.nodes, versions
        )

    def call(self, inputs: list[str], outputs: list[str]) -> Any:
        """A call of it."""
        from onnx import helper

        return helper.make_node(self.name, inputs, outputs, domain=DOMAIN)


def onnx_function(
    name: str, module: nn.Module, arguments: tuple[Any, ...], *, dynamic: Any
) -> OnnxFunction:
    """A module as a function; its arguments become inputs, flattened in their order.

    Args:
        name: What it shall be called.
        module: What is exported.
        arguments: Examples.
        dynamic: For each argument which dimensions are any number, as `torch.export` takes it.

    Example:
        >>> rows = torch.export.Dim("rows", min=1)
        >>> f = onnx_function("f", nn.ReLU(), (torch.zeros(3, 2),), dynamic=({0: rows},))
        >>> [node.op_type for node in f.nodes]
        ['Relu']
    """
    from onnx import helper

    with torch.no_grad(), quiet_export("torch.onnx", "onnxscript"):
        try:
            program = torch.export.export(module, arguments, dynamic_shapes=dynamic, strict=False)
            made: Any = torch.onnx.export(program, dynamo=True, optimize=True, verbose=False)
        except Exception as error:
            raise ModelError(
                f"the network cannot be written as ONNX: {_why(error)}. Try --format pt2"
            ) from error
    graph = made.model_proto.graph
    for node in graph.node:  # where in the user's files each came from: nobody else's business
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    opset = next(o.version for o in made.model_proto.opset_import if o.domain in ("", "ai.onnx"))
    return OnnxFunction(
        name,
        [value.name for value in graph.input],
        [value.name for value in graph.output],
        [*constants, *graph.node],
        opset,
    )


class Cut(NamedTuple):
    """A function in two: what does not depend on some of its inputs, and the rest.

    Attributes:
        trunk: Its outputs are the frontier.
        tail: Takes the frontier, and such inputs of the whole as it needs.

    Example:
        >>> Cut._fields
        ('trunk', 'tail')
    """

    trunk: OnnxFunction
    tail: OnnxFunction


def cut(whole: OnnxFunction, moving: Collection[str]) -> Cut:
    """Cut a function so that whatever depends on the `moving` inputs is in the tail.

    The tail gives all that the whole gave. Sizes that depend on the batch are values in ONNX, so
    that nothing else than operations has to be looked at.

    Example:
        >>> from onnx import helper
        >>> relu = helper.make_node("Relu", ["x"], ["h"])
        >>> nodes = [relu, helper.make_node("Mul", ["h", "w"], ["y"])]
        >>> halves = cut(OnnxFunction("f", ["x", "w"], ["y"], nodes, 20), {"w"})
        >>> halves.trunk.outputs, halves.tail.inputs
        (['h'], ['h', 'w'])
    """
    from onnx import helper

    behind = set(moving)
    trunk_nodes, tail_nodes = [], []
    for node in whole.nodes:
        if behind.isdisjoint(_used(node)):
            trunk_nodes.append(node)
        else:
            tail_nodes.append(node)
            behind.update(node.output)
    outputs = []
    for name in whole.outputs:
        if name not in behind or name in moving:  # a function has no result that it is only given
            tail_nodes.append(helper.make_node("Identity", [name], [f"{name}.out"]))
            name = f"{name}.out"
        outputs.append(name)
    needed = {name: None for node in tail_nodes for name in _used(node)}
    made = {name for node in trunk_nodes for name in node.output}
    frontier = [name for name in needed if name in made]
    given = [name for name in whole.inputs if name in needed]
    trunk_needs = {name for node in trunk_nodes for name in _used(node)}
    trunk = OnnxFunction(
        f"{whole.name}Trunk",
        [name for name in whole.inputs if name in trunk_needs],
        frontier,
        trunk_nodes,
        whole.opset,
    )
    tail = OnnxFunction(f"{whole.name}Tail", [*frontier, *given], outputs, tail_nodes, whole.opset)
    return Cut(trunk, tail)


def without_idle(graph: Any) -> set[str]:
    """Take out of a graph what none of its outputs needs; returns the names that are left in use.

    Example:
        >>> from onnx import helper
        >>> nodes = [helper.make_node("Relu", ["x"], [name]) for name in "yz"]
        >>> ends = [helper.make_tensor_value_info(name, 1, ["N"]) for name in "xy"]
        >>> graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
        >>> sorted(without_idle(graph)), len(graph.node)
        (['x', 'y'], 1)
    """
    used = {value.name for value in graph.output}
    for i in reversed(range(len(graph.node))):  # each stands behind those that it needs
        if used.isdisjoint(graph.node[i].output):
            del graph.node[i]
        else:
            used.update(_used(graph.node[i]))
    return used


def _used(node: Any) -> Iterator[str]:
    """The values that an operation needs, those of graphs inside it included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            own = {t.name for t in graph.initializer} | {v.name for v in graph.input}
            for inner in graph.node:
                yield from (name for name in _used(inner) if name not in own)
                own.update(inner.output)


def _why(error: BaseException) -> str:
    while error.__cause__ is not None:  # the exporter wraps what went wrong several times
        error = error.__cause__
    return why_not_exported(error)
