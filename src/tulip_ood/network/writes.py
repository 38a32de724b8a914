"""A graph without writes.

A part of a graph that is run again and again must not write to what it is handed.
"""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

__all__ = ["has_writes", "without_writes"]

# Operations that PyTorch composes of others may return what they were given, whatever their schema
# says. These never do.
_MAKE_NEW = {
    f"aten::{name}"
    for name in ("conv1d", "conv2d", "conv3d", "linear", "matmul", "batch_norm", "layer_norm")
}


def has_writes(graph_module: GraphModule) -> bool:
    """Whether any operation writes to a tensor.

    Example:
        >>> from torch.fx import symbolic_trace
        >>> has_writes(symbolic_trace(torch.nn.ReLU()))
        False
    """
    parts = (part for part in graph_module.modules() if isinstance(part, GraphModule))
    nodes = itertools.chain.from_iterable(part.graph.nodes for part in parts)
    return any(_writes(node) for node in nodes)


def without_writes(graph_module: GraphModule) -> GraphModule | None:
    """The same without writes; None where a write might be seen through another name.

    PyTorch can take writes out of every graph by tracing it again, which takes most of the time of
    an export and replaces operations by others. Nearly all networks write only to what they have
    just made: there it is enough to take the operation that does not write, and its result from
    there on.

    Example:
        >>> from torch.fx import symbolic_trace
        >>> without_writes(symbolic_trace(torch.nn.ReLU())) is not None
        True
    """
    if not has_writes(graph_module):
        return graph_module
    graph = Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    for node in list(graph.nodes):
        if _writes(node) and not _replaced(graph, node):
            return None
    made = GraphModule(graph_module, graph)
    return None if has_writes(made) else made


def _replaced(graph: Graph, node: Node) -> bool:
    pure, written = _pure(node), node.args[0]
    if not isinstance(written, Node):
        return False
    if node.target is torch.ops.aten.dropout_.default and node.args[2] is False:
        node.replace_all_uses_with(written)
        graph.erase_node(node)
        return True
    if pure is None or not _makes_new(written):
        return False
    place = {n: i for i, n in enumerate(graph.nodes)}
    earlier = [user for user in written.users if place[user] < place[node]]
    if not all(_makes_new(user) for user in earlier) or not _same_dtypes(node, written):
        return False
    with graph.inserting_before(node):
        new = graph.call_function(pure, node.args, node.kwargs)
    new.meta = dict(node.meta)
    kept = {new, *earlier}
    written.replace_all_uses_with(new, delete_user_cb=lambda user: user not in kept)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return True


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _pure(node: Node) -> Any:
    """The operation that does the same without writing, if only the first argument is written."""
    schema: Any = getattr(node.target, "_schema", None)
    space, _, name = schema.name.partition("::")
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    if space != "aten" or not name.endswith("_") or written != [True] + [False] * len(written[1:]):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, schema.overload_name or "default", None)


def _makes_new(node: Node) -> bool:
    """Whether an operation's result shares memory with nothing else."""
    op: Any = node.target
    schema = getattr(op, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    if len(schema.returns) != 1 or schema.returns[0].alias_info is not None:
        return False
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )
    return schema.name in _MAKE_NEW or not composed


def _same_dtypes(node: Node, written: Node) -> bool:
    """Otherwise the other operation's result may have another dtype than what is written to."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    kinds = {value.dtype for value in values if isinstance(value, Tensor)}
    value = written.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point() and kinds == {value.dtype}
