"""The artefact as one ONNX graph: the trunk once, the tail with every set of weights, the decision.

Built without numbers, from functions; then the functions are put in line, so that every runtime can
read it, and the weights are added.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tulip_ood.export.judging import OUTPUTS, Judge, Pass
from tulip_ood.export.onnx_functions import DOMAIN, OnnxFunction, cut, onnx_function
from tulip_ood.export.passing import Passing, Prepare, input_tensors
from tulip_ood.export.portable import Portable
from tulip_ood.network.features import Head

__all__ = ["build_onnx"]

_TYPES = {  # torch → onnx.TensorProto
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float64: 11,
}


def build_onnx(
    portable: Portable,
    passing: Passing,
    judge: Judge,
    prepare: Prepare | None,
    names: tuple[str, ...],
    metadata: Mapping[str, str],
) -> Any:
    """The model, ready to be written.

    Args:
        portable: The network and the weights of all passes.
        passing: Its passes.
        judge: What follows the logits.
        prepare: What is done to pixels before, or None.
        names: What the inputs are called.
        metadata: Goes along.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> portable, judge = Portable.of(detector), Judge(detector)
        >>> passing = Passing(portable, shapes=False)
        >>> model = build_onnx(portable, passing, judge, None, ("input",), {"a": "b"})
        >>> [value.name for value in model.graph.output]
        ['probs', 'logits', 'label', 'score', 'p_value', 'accepted']
    """
    from onnx import helper, inliner

    builder = _Builder(portable, passing, names)
    inputs = list(names)
    given = input_tensors(portable.example)
    if prepare is not None:
        inputs = builder.prepare(prepare, given[0])
        given = (prepare.pixels(given[0]),)
    passes = builder.passes(inputs)
    outputs = builder.judge(judge, inputs, passes)
    graph = helper.make_graph(
        builder.nodes,
        "tulip",
        [_described(name, t, rows=True) for name, t in zip(names, given, strict=True)]
        + [_described(name, t) for name, t in builder.weights.items()],
        [_described(name, t, rows=True) for name, t in zip(OUTPUTS, outputs, strict=True)],
    )
    opset = builder.functions[0].opset
    model = helper.make_model(
        graph,
        functions=[function.proto() for function in builder.functions],
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        producer_name="tulip-ood",
        ir_version=10,  # read by every runtime since early 2024
    )
    model = inliner.inline_local_functions(model)
    del model.graph.input[len(names) :]
    for name, tensor in builder.weights.items():
        model.graph.initializer.append(_initialiser(name, tensor))
    helper.set_model_props(model, dict(metadata))
    return model


class _Builder:
    """The calls of the functions, in their order."""

    def __init__(self, portable: Portable, passing: Passing, names: tuple[str, ...]) -> None:
        self._portable, self._passing, self._names = portable, passing, names
        self.nodes: list[Any] = []
        self.functions: list[OnnxFunction] = []
        self.weights: dict[str, Tensor] = {}
        self._rows = {0: torch.export.Dim("rows", min=1)}

    def prepare(self, prepare: Prepare, example: Tensor) -> list[str]:
        """Pixels to inputs."""
        pixels = prepare.pixels(example)
        made = onnx_function("Prepare", prepare, (pixels,), dynamic=(self._rows,))
        self._call(made, list(self._names), ["prepared"])
        return ["prepared"]

    def passes(self, inputs: list[str]) -> list[list[str]]:
        """The values that every pass leaves: logits, where features are shaped also those."""
        states = self._passing.states
        whole = self._whole()
        n_trunk = len(states(0)[0])
        trunk_names = whole.inputs[len(inputs) : len(inputs) + n_trunk]
        tail_names = whole.inputs[len(inputs) + n_trunk :]
        moving = [n for n, moves in zip(tail_names, self._passing.moves, strict=True) if moves]
        halves = cut(whole, moving or tail_names)
        known = dict(zip(whole.inputs, inputs, strict=False))
        titles = self._passing.titles
        for names, title_of, values in zip(
            (trunk_names, tail_names), titles, states(0), strict=True
        ):
            for name, title, value in zip(names, title_of, values, strict=True):
                if name not in moving:
                    known[name] = self._weight(title, value)
        if halves.trunk.outputs:
            known |= {name: f"trunk.{name}" for name in halves.trunk.outputs}
            self._call(
                halves.trunk,
                [known[name] for name in halves.trunk.inputs],
                [known[name] for name in halves.trunk.outputs],
            )
        results = []
        for i in range(len(self._portable.weights)):
            for name, title, value in zip(tail_names, titles[1], states(i)[1], strict=True):
                if name in moving:
                    known[name] = self._weight(f"pass{i}.{title}", value)
            results.append([f"pass{i}.{k}" for k in range(len(halves.tail.outputs))])
            self._call(halves.tail, [known[name] for name in halves.tail.inputs], results[-1])
        return results

    def judge(self, judge: Judge, inputs: list[str], passes: list[list[str]]) -> list[Tensor]:
        """The decision; returns examples of the outputs."""
        given, states = input_tensors(self._portable.example), self._passing.states
        with torch.no_grad():
            made = tuple(self._passing(given, *states(i)) for i in range(len(passes)))
            outputs: tuple[Tensor, ...] = judge(given, made)
        fixed = None if made[0].head is None else Head(None, None)  # type: ignore[arg-type]
        features = None if made[0].features is None else self._rows
        one = Pass(self._rows, features, fixed)  # type: ignore[arg-type]
        dynamic = (tuple(self._rows for _ in given), tuple(one for _ in made))
        function = onnx_function("Judge", judge, (given, made), dynamic=dynamic)
        flat = [name for left in passes for name in left]
        self._call(function, [*inputs, *flat], list(OUTPUTS))
        return list(outputs)

    def _whole(self) -> OnnxFunction:
        given = input_tensors(self._portable.example)
        trunk, tail = self._passing.states(0)
        dynamic = (
            tuple(self._rows for _ in given),
            tuple(None for _ in trunk),
            tuple(None for _ in tail),
        )
        return onnx_function("Network", self._passing, (given, trunk, tail), dynamic=dynamic)

    def _weight(self, name: str, value: Tensor) -> str:
        self.weights[name] = value
        return name

    def _call(self, function: OnnxFunction, inputs: list[str], outputs: list[str]) -> None:
        if all(known.name != function.name for known in self.functions):
            self.functions.append(function)
        self.nodes.append(function.call(inputs, outputs))


def _described(name: str, example: Tensor, *, rows: bool = False) -> Any:
    from onnx import helper

    shape = ["N", *example.shape[1:]] if rows else list(example.shape)
    return helper.make_tensor_value_info(name, _TYPES[example.dtype], shape)


def _initialiser(name: str, value: Tensor) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value.detach().cpu().contiguous().numpy(), name)
