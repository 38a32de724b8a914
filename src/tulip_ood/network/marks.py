"""Whether tensors are still what they were: where they lie, how often written, and some values.

PyTorch counts the writes to a tensor, but not those through `.data`. So a few values of each tensor
are looked at, too: what changes a whole tensor does not go unnoticed.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Marks", "same_bits"]

_VALUES = 64  # looked at in each tensor


class Marks:
    """What some tensors are like now, to be compared with what they are like later.

    Args:
        tensors: Those to be watched; views of them are kept, their values are not copied.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1000))
        >>> marks = Marks([weight])
        >>> marks.changed([weight])
        False
        >>> _ = weight.data.mul_(2)
        >>> marks.changed([weight])
        True
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        held = list(tensors)
        self._places = _places(held)
        self._views: dict[torch.device, dict[torch.dtype, list[Tensor]]] = {}
        for tensor in held:
            if tensor.layout == torch.strided and not tensor.is_quantized and tensor.numel():
                kinds = self._views.setdefault(tensor.device, {})
                kinds.setdefault(tensor.dtype, []).append(_spread(tensor.detach()))
        self._values = self._look()

    def changed(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these, the same tensors in the same order, were moved or written to since."""
        if _places(list(tensors)) != self._places:
            return True
        now = self._look()
        return any(not torch.equal(a, b) for a, b in zip(self._values, now, strict=True))

    def _look(self) -> list[Tensor]:
        """The bytes of the values, one tensor a device: comparing them waits for it once."""
        return [
            torch.cat([torch.cat(views).view(torch.uint8) for views in kinds.values()])
            for kinds in self._views.values()
        ]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the last bit; NaN equals NaN.

    Example:
        >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
        True
    """
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _places(tensors: list[Tensor]) -> tuple[Any, ...]:
    # A tensor made in inference mode has no version; its address must do.
    return tuple(
        (t.data_ptr(), 0 if t.is_inference() else t._version, t.device, t.dtype) for t in tensors
    )


def _spread(tensor: Tensor) -> Tensor:
    """Up to 64 values from all over a tensor, as a view where its memory allows one."""
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    flat = tensor.permute(order).reshape(-1)  # in the order of memory
    return flat[:: -(-flat.numel() // _VALUES)]
