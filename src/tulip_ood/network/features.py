"""Which part of a network runs when, the last linear layer, and what it is fed.

Found by watching one forward pass of the private copy, not by names: the same code serves ResNets,
transformers and networks that nobody has seen before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Calls", "FeatureTap", "find_head", "record_calls"]


@dataclass(frozen=True)
class Calls:
    """When each part of a network started and ended, in one forward pass.

    Attributes:
        spans: Module name → (start, end) of its first call, on a common clock.
        outputs: Name of each executed linear layer → its output.

    Example:
        >>> Calls({"fc": (3, 4)}).spans["fc"]
        (3, 4)
    """

    spans: dict[str, tuple[int, int]]
    outputs: dict[str, Tensor] = field(default_factory=dict, repr=False)


def record_calls(module: nn.Module, run: Callable[[], Tensor]) -> tuple[Calls, Tensor]:
    """Call `run`, which must forward through `module`, and note which part ran when.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> calls, _ = record_calls(net, lambda: net(torch.zeros(1, 2)))
        >>> sorted(calls.spans)
        ['', '0', '1']
    """
    clock = iter(range(1 << 62))
    starts: dict[str, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    outputs: dict[str, Tensor] = {}
    handles = []

    def watch(name: str, part: nn.Module) -> None:
        def before(_: nn.Module, args: Any) -> None:
            starts.setdefault(name, next(clock))

        def after(_: nn.Module, args: Any, out: Any) -> None:
            spans.setdefault(name, (starts[name], next(clock)))
            if isinstance(part, nn.Linear) and isinstance(out, Tensor):
                outputs.pop(name, None)  # a part that runs again moves to the end
                outputs[name] = out

        handles.append(part.register_forward_pre_hook(before))
        handles.append(part.register_forward_hook(after))

    for name, part in module.named_modules():
        watch(name, part)
    try:
        result = run()
    finally:
        for handle in handles:
            handle.remove()
    return Calls(spans, outputs), result


def find_head(module: nn.Module, calls: Calls, logits: Tensor) -> str | None:
    """The name of the last linear layer: the one whose output is the logits.

    Where no output equals them (logits that are scaled afterwards), the last linear layer that
    ran and has as many outputs. None if there is no such layer.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Linear(5, 3))
        >>> calls, out = record_calls(net, lambda: net(torch.zeros(1, 2)))
        >>> find_head(net, calls, out)
        '1'
    """
    candidates = [name for name, out in calls.outputs.items() if out.shape[-1] == logits.shape[-1]]
    same = [
        name
        for name in candidates
        if calls.outputs[name].shape == logits.shape and torch.equal(calls.outputs[name], logits)
    ]
    for found in (same, candidates):
        if found:
            return found[-1]
    return None


class FeatureTap:
    """Keeps what a layer is fed, and feeds it something else where a shaping is given.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 2)
        >>> tap = FeatureTap(layer, None)
        >>> _ = layer(torch.ones(1, 3))
        >>> tap.pop()
        tensor([[1., 1., 1.]])
    """

    def __init__(self, layer: nn.Module, shaping: Callable[[Tensor], Tensor] | None) -> None:
        self._shaping = shaping
        self._kept: Tensor | None = None
        layer.register_forward_pre_hook(self._before)

    def _before(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self._kept = args[0]
        if self._shaping is None:
            return None
        return (self._shaping(args[0]), *args[1:])

    def pop(self) -> Tensor | None:
        """The features of the last call, [N, d], and forget them."""
        kept, self._kept = self._kept, None
        return None if kept is None else kept.detach().flatten(1)
