"""A part of a graph in two: what follows from its weights alone, and what inputs go through.

Weights are perturbed first, and then made *ready*, once for every perturbed copy: normalisation
folded into the convolution before it, other weights computed, and laid out as kernels like them.
Every pass over inputs is handed weights that are ready, and has less to do.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tulip_ood.network import winograd

__all__ = ["Lowering", "divide", "folded_bias", "folded_weight"]

_Node = Any  # fx.Node, whose arguments PyTorch types so widely that nothing can be said of them
_CONVOLUTIONS = (
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv3d.default,
    torch.ops.aten.linear.default,
)
_NORM = torch.ops.aten.batch_norm.default
_RELU = torch.ops.aten.relu.default
_ADD = torch.ops.aten.add.Tensor
# Results that nothing else shares memory with, and that are as large as what a ReLU makes of them.
_MAKE_NEW = (*_CONVOLUTIONS, _ADD, _NORM, torch.ops.aten.add_.Tensor)


@dataclass(frozen=True)
class Lowering:
    """What is done to a part of a graph so that it runs faster.

    Attributes:
        fold: Fold normalisation into convolutions and linear layers.
        channels_last: Lay out images and the weights of convolutions with channels last.
        fuse: Use convolutions with bias, sum and ReLU in one: cuDNN's, or oneDNN's on a CPU.
        in_place: Let a ReLU or a sum write to what only it reads.
        winograd: Convolve with fewer multiplications where that pays, in float32 on a CPU.

    Example:
        >>> Lowering().fold, Lowering().fuse
        (True, False)
    """

    fold: bool = True
    channels_last: bool = False
    fuse: bool = False
    in_place: bool = True
    winograd: bool = False


def divide(
    owner: fx.GraphModule, graph: fx.Graph, given: int, lowering: Lowering
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """From a graph of (given …, states …) to one of the states and one of (given …, ready …).

    Args:
        owner: Whose attributes the graph refers to.
        graph: Is changed. Nodes may have a shape and a dtype noted in `meta`, for operations that
            must not change either.
        given: How many of the placeholders are handed over in every pass; the rest are states.
        lowering: What to do.

    Example:
        >>> def double(x, weight, bias):
        ...     return x @ (2 * weight) + bias
        >>> graph = fx.symbolic_trace(double)
        >>> prepare, run = divide(graph, graph.graph, 1, Lowering())
        >>> x, weight, bias = torch.rand(2, 3), torch.rand(3, 4), torch.rand(4)
        >>> sorted(t.ndim for t in prepare(weight, bias))
        [1, 2]
        >>> bool((run(x, *prepare(weight, bias)) == double(x, weight, bias)).all())
        True
    """
    places = [node for node in graph.nodes if node.op == "placeholder"]
    states = places[given:]
    if lowering.fold:
        for node in [n for n in graph.nodes if n.target is _NORM]:
            _fold(graph, node, _follow_from(graph, states))
    if lowering.fuse:
        for node in [n for n in graph.nodes if n.target is _RELU]:
            _fuse(graph, node)
    if lowering.winograd:
        for node in [n for n in graph.nodes if n.target in _CONV_2D]:
            _multiply_less(node)
    graph.eliminate_dead_code()
    prepare, crossing = _prepare(graph, states, lowering)
    run = _run(graph, places[:given], crossing)
    if lowering.in_place and not lowering.fuse:
        _write_in_place(run)
    return fx.GraphModule(owner, prepare), fx.GraphModule(owner, run)


# --------------------------------------------------------------------------------- two graphs


def _follow_from(graph: fx.Graph, states: list[fx.Node]) -> set[fx.Node]:
    """The states, and everything that is computed from them and nothing else."""
    found = set(states)
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node.op == "call_function" and sources and found.issuperset(sources):
            found.add(node)
    return found


def _prepare(
    graph: fx.Graph, states: list[fx.Node], lowering: Lowering
) -> tuple[fx.Graph, list[fx.Node]]:
    """The graph of what follows from the states, and which nodes the rest needs of it."""
    found = _follow_from(graph, states)
    crossing = [n for n in graph.nodes if n in found and not found.issuperset(n.users)]
    prepare = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in states:
            new[node] = prepare.placeholder(node.name)
        elif node in found:
            new[node] = prepare.node_copy(node, new.__getitem__)
    kept = []
    for node in crossing:
        ready = new[node]
        if lowering.channels_last and _is_kernel(node):
            ready = prepare.call_function(_channels_last, (ready,))
        kept.append(ready)
    prepare.output(tuple(kept))
    prepare.eliminate_dead_code()
    return prepare, crossing


def _run(graph: fx.Graph, given: list[fx.Node], crossing: list[fx.Node]) -> fx.Graph:
    """The rest, with what is ready as placeholders."""
    run = fx.Graph()
    new = {node: run.placeholder(node.name) for node in (*given, *crossing)}
    states = {node for node in graph.nodes if node.op == "placeholder"} - set(given)
    found = _follow_from(graph, list(states))
    for node in graph.nodes:
        if node in new or node in found or node.op == "placeholder":
            continue
        new[node] = run.node_copy(node, new.__getitem__)
        new[node].meta = dict(node.meta)
    return run


def _is_kernel(node: fx.Node) -> bool:
    convolve = (*_CONV_2D, _conv_minimal)
    return any(user.target in convolve and user.args[1] is node for user in node.users)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------------------------- folding


def folded_weight(weight: Tensor, scale: Tensor | None, var: Tensor, eps: float) -> Tensor:
    """The weight of a layer whose outputs are normalised: w · γ / √(σ² + ε), rounded once.

    Example:
        >>> folded_weight(torch.ones(1, 2), torch.tensor([3.0]), torch.tensor([4.0]), 0.0)
        tensor([[1.5000, 1.5000]])
    """
    factor = _factor(scale, var, eps)
    shape = (-1, *[1] * (weight.ndim - 1))
    return (weight.double() * factor.reshape(shape)).to(weight.dtype)


def folded_bias(
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> Tensor:
    """The bias of a layer whose outputs are normalised: (b − μ) · γ / √(σ² + ε) + β.

    Example:
        >>> one = torch.ones(1)
        >>> folded_bias(None, 2 * one, one, mean=3 * one, var=one, eps=0.0)
        tensor([-5.])
    """
    own = -mean.double() if bias is None else bias.double() - mean.double()
    moved = own * _factor(scale, var, eps)
    return (moved if shift is None else moved + shift.double()).to(mean.dtype)


def _factor(scale: Tensor | None, var: Tensor, eps: float) -> Tensor:
    factor = (var.double() + eps).rsqrt()
    return factor if scale is None else factor * scale.double()


def _fold(graph: fx.Graph, norm: _Node, still: set[fx.Node]) -> None:
    layer, *own = norm.args
    scale, shift, mean, var, training, _, eps = own[:7]
    if training or not isinstance(layer, fx.Node) or layer.target not in _CONVOLUTIONS:
        return
    weight, bias = layer.args[1], layer.args[2] if len(layer.args) > 2 else None
    fixed = [node for node in (weight, bias, scale, shift, mean, var) if node is not None]
    # A linear layer over tokens has its channels last, where no BatchNorm looks for them.
    flat = layer.target is not torch.ops.aten.linear.default or layer.meta.get("ndim") == 2
    if mean is None or len(layer.users) > 1 or not flat or not still.issuperset(fixed):
        return
    with graph.inserting_before(norm):
        new_weight = graph.call_function(folded_weight, (weight, scale, var, eps))
        new_bias = graph.call_function(folded_bias, (bias, scale, shift, mean, var, eps))
        args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
        new = graph.call_function(layer.target, args, layer.kwargs)
    new.meta = dict(layer.meta)
    norm.replace_all_uses_with(new)
    graph.erase_node(norm)
    graph.erase_node(layer)


# -------------------------------------------------------------------------------------- fusing


def _conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    made: Tensor
    if x.device.type == "cpu":
        run = torch.ops.mkldnn._convolution_pointwise.default
        made = run(x, weight, bias, *_for_mkldnn(*how), "relu", [], "")
    else:
        made = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, *how)
    return made


def _conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, *how: Any) -> Tensor:
    made: Tensor
    if x.device.type == "cpu":
        run = torch.ops.mkldnn._convolution_pointwise.binary
        made = run(x, z, weight, bias, *_for_mkldnn(*how), "add", None, "relu", [], "")
    else:
        made = torch.ops.aten.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, *how)
    return made


def _for_mkldnn(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    return padding, stride, dilation, groups


_CONV_2D = (torch.ops.aten.conv2d.default, _conv_relu, _conv_add_relu)


def _conv_minimal(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, relu: bool, *how: Any
) -> Tensor:
    """One of the three, with fewer multiplications if the shapes are such."""
    padding = how[1][0]
    if winograd.pays(x, weight, padding):
        return winograd.convolve(x, weight, bias, padding, added=z, relu=relu)
    if z is not None:
        return _conv_add_relu(x, weight, bias, z, *how)
    return _conv_relu(x, weight, bias, *how) if relu else torch.conv2d(x, weight, bias, *how)


def _multiply_less(layer: _Node) -> None:
    x, weight, *more = layer.args
    bias, *rest = more or [None]
    z = rest[0] if layer.target is _conv_add_relu else None
    relu = layer.target is not torch.ops.aten.conv2d.default
    stride, padding, dilation, groups = how = rest[-4:] if relu else _geometry(layer)
    if stride == dilation == [1, 1] and groups == 1 and padding in ([0, 0], [1, 1]):
        layer.args = (x, weight, bias, z, relu, *how)
        layer.target = _conv_minimal


def _fuse(graph: fx.Graph, relu: _Node) -> None:
    source = relu.args[0]
    summed = None if _is_plain_convolution(source) else _summed(source)
    if summed is None and not _is_plain_convolution(source):
        return
    layer, *added = (source,) if summed is None else summed
    function: Any = _conv_add_relu if added else _conv_relu
    with graph.inserting_before(relu):
        kernel = *layer.args[:2], _joined_bias(graph, layer, *added)
        new = graph.call_function(function, (*kernel, *added, *_geometry(layer)))
    new.meta = dict(relu.meta)
    relu.replace_all_uses_with(new)
    graph.erase_node(relu)


def _joined_bias(graph: fx.Graph, layer: _Node, *added: _Node) -> _Node:
    """That of a convolution, and of one that is added to it: by itself it costs a kernel."""
    bias = layer.args[2]
    for other in added:
        if _is_plain_convolution(other):
            bias = graph.call_function(torch.add, (bias, other.args[2]))
            other.args = (*other.args[:2], None, *other.args[3:])
    return bias


def _summed(node: _Node) -> tuple[_Node, _Node] | None:
    """A convolution that something of the same shape is added to, and what is added."""
    if not isinstance(node, fx.Node) or node.target is not _ADD or len(node.users) > 1:
        return None
    if node.kwargs.get("alpha", 1) != 1:
        return None
    for layer, other in (node.args[:2], node.args[1::-1]):
        if _is_plain_convolution(layer) and isinstance(other, fx.Node) and _alike(layer, other):
            return layer, other
    return None


def _is_plain_convolution(node: _Node) -> bool:
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.conv2d.default:
        return False
    # Fused kernels want a bias, and cuDNN has none for depthwise convolutions.
    has_bias = len(node.args) > 2 and node.args[2] is not None
    return len(node.users) == 1 and has_bias and _geometry(node)[3] == 1


def _geometry(layer: _Node) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation, groups."""
    given = (*layer.args[3:], *(None,) * 4)[:4]
    stride, padding, dilation = (
        [default] * 2 if value is None else list(value) * (2 // len(list(value)))
        for value, default in zip(given[:3], (1, 0, 1), strict=True)
    )
    return stride, padding, dilation, 1 if given[3] is None else int(given[3])


def _alike(one: _Node, two: _Node) -> bool:
    keys = ("shape", "dtype")
    return all(key in one.meta and one.meta[key] == two.meta.get(key) for key in keys)


# ------------------------------------------------------------------------------------ in place


def _write_in_place(graph: fx.Graph) -> None:
    """relu(x) becomes relu_(x), and x + y becomes x.add_(y), where nobody else looks at x."""
    for node in graph.nodes:
        if node.target is _RELU and _is_own(node.args[0]):
            node.target = torch.ops.aten.relu_.default
        elif node.target is _ADD and not node.kwargs and _is_own(node.args[0]):
            other = node.args[1]
            if isinstance(other, fx.Node) and _alike(node.args[0], other):
                node.target = torch.ops.aten.add_.Tensor


def _is_own(node: _Node) -> bool:
    return isinstance(node, fx.Node) and node.target in _MAKE_NEW and len(node.users) == 1
