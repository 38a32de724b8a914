"""The artefact as one ONNX graph: the trunk once, the tail with every set of weights, the decision.

Built without numbers, from functions; then the functions are put in line, so that every runtime can
read it, and the weights are added.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.export.judging import OUTPUTS, Judge, Pass
from tulip_ood.export.onnx_functions import (
    DOMAIN,
    Cut,
    OnnxFunction,
    cut,
    onnx_function,
    without_idle,
)
from tulip_ood.export.passing import Passing, Prepare, input_tensors
from tulip_ood.export.portable import Portable
from tulip_ood.network.features import Head
from tulip_ood.network.mirrored import Mirrored

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
        >>> passing = Passing(portable)
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
    passes, mirrored = builder.passes(inputs), builder.mirrored(inputs)
    outputs = builder.judge(judge, inputs, passes, mirrored)
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
    used = without_idle(model.graph)
    for name, tensor in builder.weights.items():
        if name in used:
            model.graph.initializer.append(_initialiser(name, tensor))
    helper.set_model_props(model, dict(metadata))
    return model


class _Mirror(nn.Module):
    """Images to their mirror images."""

    def forward(self, images: Tensor) -> Tensor:
        return self.of((images,))[0]

    @staticmethod
    def of(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed: tuple[Tensor, ...] = Mirrored().change(inputs)
        return changed


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
        """The values that every pass leaves: those of a `Pass`, one after another."""
        frontier = self._trunk(inputs, "trunk")
        return [self._tail(frontier, i, f"pass{i}") for i in range(len(self._portable.weights))]

    def mirrored(self, inputs: list[str]) -> list[list[str]]:
        """The values that the base pass of the mirror images leaves, if it is made."""
        if not self._portable.mirrors:
            return []
        given = input_tensors(self._portable.example)
        made = onnx_function("Mirror", _Mirror(), given, dynamic=(self._rows,))
        self._call(made, inputs, ["mirrored.input"])
        frontier = self._trunk(["mirrored.input"], "mirrored.trunk")
        return [self._tail(frontier, 0, "mirrored.pass")]

    def judge(
        self, judge: Judge, inputs: list[str], passes: list[list[str]], mirrored: list[list[str]]
    ) -> list[Tensor]:
        """The decision; returns examples of the outputs."""
        given, states = input_tensors(self._portable.example), self._passing.states
        with torch.no_grad():
            made = tuple(self._passing(given, *states(i)) for i in range(len(passes)))
            again = tuple(self._passing(_Mirror.of(given), *states(0)) for _ in mirrored)
            outputs: tuple[Tensor, ...] = judge(given, made, again)
        one = Pass(*(self._dynamic(value) for value in made[0]))
        dynamic = (
            tuple(self._rows for _ in given),
            tuple(one for _ in made),
            tuple(one for _ in again),
        )
        function = onnx_function("Judge", judge, (given, made, again), dynamic=dynamic)
        flat = [name for left in (*passes, *mirrored) for name in left]
        self._call(function, [*inputs, *flat], list(OUTPUTS))
        return list(outputs)

    def _dynamic(self, value: Any) -> Any:
        """Which sizes of a value are any number: the rows, of all but the last layer."""
        if value is None:
            return None
        return Head(None, None) if isinstance(value, Head) else self._rows  # type: ignore[arg-type]

    # --------------------------------------------------------------------- the network

    def _trunk(self, inputs: list[str], title: str) -> dict[str, str]:
        """Call the trunk; returns what the values that a tail may need are called."""
        halves = self._halves
        known = self._shared | dict(zip(self._whole.inputs, inputs, strict=False))
        if halves.trunk.outputs:
            known |= {name: f"{title}.{name}" for name in halves.trunk.outputs}
            self._call(
                halves.trunk,
                [known[name] for name in halves.trunk.inputs],
                [known[name] for name in halves.trunk.outputs],
            )
        return known

    def _tail(self, known: dict[str, str], i: int, title: str) -> list[str]:
        """Call the tail with the weights of pass i; returns what its results are called."""
        tail, known = self._halves.tail, dict(known)
        titles, values = self._passing.titles[1], self._passing.states(i)[1]
        for name, title_of, value in zip(self._state_names[1], titles, values, strict=True):
            if name in self._moving:
                known[name] = self._weight(f"pass{i}.{title_of}", value)
        results = [f"{title}.{k}" for k in range(len(tail.outputs))]
        self._call(tail, [known[name] for name in tail.inputs], results)
        return results

    @cached_property
    def _state_names(self) -> tuple[list[str], list[str]]:
        """What the states of trunk and tail are called in the function of the whole network."""
        inputs, n_trunk = self._whole.inputs[len(self._names) :], len(self._passing.states(0)[0])
        return inputs[:n_trunk], inputs[n_trunk:]

    @cached_property
    def _moving(self) -> list[str]:
        moves = zip(self._state_names[1], self._passing.moves, strict=True)
        return [name for name, moving in moves if moving]

    @cached_property
    def _halves(self) -> Cut:
        return cut(self._whole, self._moving or self._state_names[1])

    @cached_property
    def _shared(self) -> dict[str, str]:
        """Weights that all passes have in common."""
        known = {}
        groups = zip(self._state_names, self._passing.titles, self._passing.states(0), strict=True)
        for names, titles, values in groups:
            for name, title, value in zip(names, titles, values, strict=True):
                if name not in self._moving:
                    known[name] = self._weight(title, value)
        return known

    @cached_property
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
