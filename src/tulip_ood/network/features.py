"""Which part of a network runs when, the last linear layer, and what it is fed.

Found by watching one forward pass of the private copy, not by names: the same code serves ResNets,
transformers and networks that nobody has seen before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from tulip_ood.errors import ModelError

__all__ = ["Calls", "FeatureTap", "Head", "find_head", "is_linear", "picked_rows", "record_calls"]


@dataclass(frozen=True)
class Calls:
    """When each part of a network started and ended, in one forward pass.

    Attributes:
        spans: Module name → (start, end) of its first call, on a common clock.
        outputs: Name of each executed linear layer → its output, [N, …, o].

    Example:
        >>> Calls({"fc": (3, 4)}).spans["fc"]
        (3, 4)
    """

    spans: dict[str, tuple[int, int]]
    outputs: dict[str, Tensor] = field(default_factory=dict, repr=False)


class Head(NamedTuple):
    """The last linear layer: logits = features · weightᵀ + bias.

    Example:
        >>> import torch
        >>> Head(torch.eye(2), torch.zeros(2)).logits(torch.tensor([[1.0, 2.0]]))
        tensor([[1., 2.]])
    """

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Logits [N, o] of features [N, d]."""
        return features @ self.weight.T.to(features.dtype) + self.bias.to(features.dtype)


def is_linear(part: nn.Module) -> bool:
    """Whether a layer is a linear map of feature vectors: nn.Linear, or a 1 × 1 convolution.

    Example:
        >>> is_linear(torch.nn.Linear(2, 2)), is_linear(torch.nn.Conv2d(2, 2, 3))
        (True, False)
    """
    if isinstance(part, nn.Linear):
        return True
    return (
        isinstance(part, nn.Conv2d)
        and part.kernel_size == (1, 1)
        and part.stride == (1, 1)
        and part.groups == 1
    )


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
            # Nested tensors (a TransformerEncoder's, of padded rows) have no shape.
            if is_linear(part) and isinstance(out, Tensor) and not out.is_nested:
                outputs.pop(name, None)  # a part that runs again moves to the end
                pooled = isinstance(part, nn.Conv2d) and out.shape[2:] == (1, 1)
                outputs[name] = out.flatten(1) if pooled else out

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


def find_head(calls: Calls, logits: Tensor, named: str | None = None) -> tuple[str | None, bool]:
    """The name of the last linear layer, and whether its output *is* the logits.

    None where no output equals them and none is named (see `deciding`).

    Args:
        calls: Which part ran when.
        logits: What the network returned.
        named: The layer, where the user knows it.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Linear(5, 3))
        >>> calls, out = record_calls(net, lambda: net(torch.zeros(1, 2)))
        >>> find_head(calls, out)
        ('1', True)
    """
    same = [
        name
        for name, out in calls.outputs.items()
        if (out.shape == logits.shape and torch.equal(out, logits))
        or picked_rows(out, logits) is not None
    ]
    if named is not None:
        if named not in calls.outputs:
            ran = ", ".join(calls.outputs) or "none"
            raise ModelError(
                f"head={named!r} is no linear layer (nn.Linear or a 1 × 1 convolution) that ran; "
                f"those that did: {ran}"
            )
        return named, named in same
    return (same[-1], True) if same else (None, False)


def picked_rows(out: Tensor, logits: Tensor) -> Tensor | None:
    """Whose row of a layer's output [N, T, o] the logits [N, o] are: [N], or None if nobody's.

    Decoders (GPT-2, Llama) classify every token and return the last one's logits.

    Example:
        >>> import torch
        >>> out = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> picked_rows(out, torch.tensor([[3.0, 4.0]]))
        tensor([1])
    """
    if out.ndim != 3 or logits.ndim != 2 or out.shape[::2] != logits.shape:
        return None
    same = (out == logits.unsqueeze(1)).all(dim=2)
    lost = ~same.any(dim=1) & logits.isfinite().all(dim=1)
    return None if bool(lost.any()) else same.int().argmax(dim=1)


class FeatureTap:
    """Keeps what a linear layer is fed, and the weights that it was run with.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 2)
        >>> tap = FeatureTap(layer)
        >>> logits = layer(torch.ones(1, 3))
        >>> features, head = tap.pop(logits)
        >>> features, head.weight.shape
        (tensor([[1., 1., 1.]]), torch.Size([2, 3]))
    """

    def __init__(self, layer: nn.Module) -> None:
        self._kept: tuple[Tensor, Head, Any] | None = None
        layer.register_forward_hook(self._after)

    def _after(self, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        weight, bias = cast("Tensor", layer.weight).detach().flatten(1), layer.bias
        empty = weight.new_zeros(len(weight))
        head = Head(weight, bias.detach() if isinstance(bias, Tensor) else empty)
        self._kept = (args[0], head, out)

    def pop(self, logits: Tensor) -> tuple[Tensor, Head] | None:
        """The features [N, d] and head of the last call, which gave these logits; forget them."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        features, head, out = kept
        place = picked_rows(out, logits) if isinstance(out, Tensor) else None
        if place is not None:
            features = features[torch.arange(len(features), device=features.device), place]
        return features.flatten(1), head
