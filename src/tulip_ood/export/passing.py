"""The passes as modules that can be exported: the trunk once, the tail for every set of weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import InputError, ModelError
from tulip_ood.export.judging import Judge, Pass
from tulip_ood.export.portable import Portable
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import Head, picked_rows
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.mirrored import Mirrored

__all__ = ["Passing", "Prepare", "WholeDetector", "input_tensors"]


def input_tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """The tensors of some inputs as an artefact takes them: one after another, floats in float32.

    Example:
        >>> [t.dtype for t in input_tensors({"b": torch.zeros(1).double(), "a": torch.zeros(1)})]
        [torch.float32, torch.float32]
    """
    found = (t.detach().cpu() for _, t in structures.tensors(inputs))
    return tuple((t.float() if t.is_floating_point() else t).contiguous() for t in found)


class Passing(nn.Module):
    """One pass, with its states as arguments.

    Args:
        portable: The network.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> passing = Passing(Portable.of(detector))
        >>> passing((x,), *passing.states(0)).logits.shape
        torch.Size([200, 3])
    """

    def __init__(self, portable: Portable) -> None:
        super().__init__()
        self._portable = portable
        # The tail of the base pass does for all: what nobody reads of the others goes in the end.
        self._trunk, *_, self._tail = portable.partition.parts
        own = portable.network.parameters
        self._ready = tuple(portable.partition.weights({**own, **w}) for w in portable.weights)
        self._picks = portable.features and _picks_rows(portable)

    def states(self, i: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What trunk and tail need beside the inputs, in pass i."""
        return self._portable.partition._current("trunk").values, self._ready[i].values

    @property
    def moves(self) -> tuple[bool, ...]:
        """Which of the tail's states differ between passes."""
        return self._tail.moving

    @property
    def titles(self) -> tuple[list[str], list[str]]:
        """What the states of trunk and tail are called."""
        found, parts = [], {"trunk": self._trunk, "tail": self._tail}
        for (kind, part), states in zip(parts.items(), self.states(0), strict=True):
            graph: Any = part.run
            places = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
            found.append([f"{kind}.{name}" for name in places[len(places) - len(states) :]])
        return found[0], found[1]

    def trunk(self, inputs: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """What all passes have in common."""
        moved = self._portable.network.to_device(inputs)
        values: tuple[Any, ...] = self._trunk.run(*moved, *states)
        return values

    def tail(self, frontier: tuple[Any, ...], states: tuple[Tensor, ...]) -> Pass:
        """The rest of a pass."""
        raw, *tapped = self._tail.run(*frontier, *states)
        inner = None if self._portable.inner is None else tapped.pop()
        logits = self._portable.network.task.outputs(raw)
        if not self._portable.features:
            return Pass(logits, None, None, inner)
        features, out, weight, bias = tapped
        if self._picks:
            features = _picked(features, out, logits)
        weight = weight.flatten(1)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return Pass(logits, features.flatten(1), Head(weight, bias), inner)

    def forward(
        self, inputs: tuple[Tensor, ...], trunk: tuple[Tensor, ...], tail: tuple[Tensor, ...]
    ) -> Pass:
        """A whole pass."""
        return self.tail(self.trunk(inputs, trunk), tail)


def _picks_rows(portable: Portable) -> bool:
    """Whether the last layer runs at every position and one of them answers, as in decoders."""
    output, partition = portable.network.run(portable.example), portable.partition
    raw, fed, out, *_ = partition.all_values(
        partition.handed(portable.example), [partition.weights()]
    )[0]
    if output.features is not None and math.prod(fed.shape[1:]) == fed.shape[1]:
        return False
    logits = portable.network.task.outputs(raw)
    picked = picked_rows(out, logits) is not None and fed.shape[:2] == out.shape[:2]
    if output.features is None or not picked:
        head = portable.network.known_probe.head
        raise ModelError(
            f"this detector looks at what the last layer ({head!r}) is fed, which is no vector an "
            f"input but {['N', *fed.shape[1:]]}, and the logits are not those of one position: "
            f"such a detector cannot be exported. Pool features before the last layer, or export a "
            f"detector that needs logits alone (tulip, noise, ent, msp, gen, ebo, mls)"
        )
    return True


def _picked(features: Tensor, out: Tensor, logits: Tensor) -> Tensor:
    """Features [N, d] of the position whose outputs are the logits; see `features.picked_rows`."""
    place = (out == logits.unsqueeze(1)).all(dim=2).to(torch.int32).argmax(dim=1)
    index = place[:, None, None].expand(-1, 1, features.shape[2])
    return features.gather(1, index).squeeze(1)


class Prepare(nn.Module):
    """Pixels as they come from a decoder, uint8 [N, H, W, C], to what the network takes.

    Args:
        preprocess: Its mean and std; resizing and cropping are done before.

    Example:
        >>> prepare = Prepare(Preprocess(None, None, (0.5,) * 3, (0.5,) * 3))
        >>> prepare(torch.zeros(2, 8, 8, 3, dtype=torch.uint8)).shape
        torch.Size([2, 3, 8, 8])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocess, name), dtype=torch.float32)
            self.register_buffer(name, values[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        """As `Preprocess.normalise`, in its order."""
        x = pixels.permute(0, 3, 1, 2).to(torch.float32)
        return (x / 255.0 - self.mean) / self.std

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels that come nearest to an input of the network's."""
        if x.ndim != 4 or x.shape[1] != len(self.mean):
            raise InputError(
                f"pixels [N, H, W, {len(self.mean)}] can be prepared inside for networks that take "
                f"images [N, {len(self.mean)}, H, W]; this one takes {['N', *x.shape[1:]]}"
            )
        scaled = (x.float() * self.std + self.mean) * 255.0
        return scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


class WholeDetector(nn.Module):
    """Everything, from inputs to decisions, with all weights in it.

    Args:
        passing: The passes.
        portable: Whose weights.
        judge: What follows the logits.
        prepare: What comes before the network, or None.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> portable = Portable.of(detector)
        >>> whole = WholeDetector(Passing(portable), portable, Judge(detector))
        >>> len(whole((x,)))
        6
    """

    def __init__(
        self, passing: Passing, portable: Portable, judge: Judge, prepare: Prepare | None = None
    ) -> None:
        super().__init__()
        self.passing, self.judge, self.prepare = passing, judge, prepare
        trunk, shared = passing.states(0)
        perturbed = passing.moves
        for i, value in enumerate(trunk):
            self.register_buffer(f"trunk_{i}", value)
        for place, value in enumerate(shared):
            if not perturbed[place]:
                self.register_buffer(f"tail_{place}", value)
        for i in range(len(portable.weights)):
            for place, value in enumerate(passing.states(i)[1]):
                if perturbed[place]:
                    self.register_buffer(f"pass_{i}_{place}", value)
        self._counts = len(trunk), len(portable.weights)
        self._mirrors = portable.mirrors

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See `judging.OUTPUTS`."""
        if self.prepare is not None:
            inputs = (self.prepare(inputs[0]),)
        n_trunk, n_passes = self._counts
        trunk = tuple(self.get_buffer(f"trunk_{i}") for i in range(n_trunk))
        frontier = self.passing.trunk(inputs, trunk)
        passes = tuple(self.passing.tail(frontier, self._tail(i)) for i in range(n_passes))
        mirrored: tuple[Pass, ...] = ()
        if self._mirrors:
            frontier = self.passing.trunk(Mirrored().change(inputs), trunk)
            mirrored = (self.passing.tail(frontier, self._tail(0)),)
        outputs: tuple[Tensor, ...] = self.judge(inputs, passes, mirrored)
        return outputs

    def _tail(self, i: int) -> tuple[Tensor, ...]:
        return tuple(
            self.get_buffer(f"pass_{i}_{place}" if perturbed else f"tail_{place}")
            for place, perturbed in enumerate(self.passing.moves)
        )
