"""What a pass computes, in order: how many operations, and how many are left at each parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["NOT_COUNTED", "Compute", "count_compute"]


@dataclass(frozen=True)
class Compute:
    """The arithmetic of one pass.

    Attributes:
        flops: Floating-point operations for one input; 0 where they could not be counted.
        left: Parameter → the share of them from its first use to the end, 0 to 1.

    Example:
        >>> Compute(100.0, {"fc.weight": 0.1}).left["fc.weight"]
        0.1
    """

    flops: float = 0.0
    left: Mapping[str, float] = field(default_factory=dict)


NOT_COUNTED = Compute()


class _Count(TorchDispatchMode):
    """Counts operations while a network runs, and notes when each tensor is used first."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self.total = 0.0
        self.before: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            name = self._names.get(_storage(value)) if isinstance(value, Tensor) else None
            if name is not None:
                self.before.setdefault(name, self.total)
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def count_compute(
    run: Callable[[], object], parameters: Mapping[str, Tensor], rows: int
) -> Compute:
    """Call `run`, which must use these very parameters, and count what it computes.

    Args:
        run: A pass over some inputs.
        parameters: By name.
        rows: How many inputs there are.

    Example:
        >>> import torch
        >>> x, w, v = torch.ones(2, 3), torch.ones(3, 30), torch.ones(30, 10)
        >>> counted = count_compute(lambda: x @ w @ v, {"w": w, "v": v}, rows=2)
        >>> counted.flops, counted.left
        (780.0, {'w': 1.0, 'v': 0.7692307692307692})
    """
    counted = _Count({_storage(p): name for name, p in parameters.items()})
    try:
        with counted:
            run()
    except Exception:  # this is only a help in choosing, and a network may do what has no count
        return NOT_COUNTED
    if not counted.total:
        return NOT_COUNTED
    left = {name: 1.0 - before / counted.total for name, before in counted.before.items()}
    return Compute(counted.total / rows, left)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors and the like have none
        return 0
