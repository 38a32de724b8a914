"""Where the logits are in what a network returns."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tulip_ood.errors import ModelError

__all__ = ["find_logits"]


def find_logits(returned: Any, output: Callable[[Any], Tensor] | None = None) -> Tensor:
    """The logits: a tensor, `["logits"]`, `.logits`, or what the user's function picks.

    Args:
        returned: What the network returned.
        output: Picks them, where the user has said how.

    Example:
        >>> import torch
        >>> find_logits({"logits": torch.ones(1), "loss": None})
        tensor([1.])
        >>> find_logits((torch.ones(1), None), lambda out: out[0])
        tensor([1.])
    """
    if output is not None:
        picked = output(returned)
        if not isinstance(picked, Tensor):
            raise ModelError(f"output=… must return a tensor, it gave {type(picked).__name__}")
        return picked
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        found: Tensor = returned["logits"]
        return found
    if isinstance(getattr(returned, "logits", None), Tensor):
        attribute: Tensor = returned.logits
        return attribute
    keys = f" with keys {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
    raise ModelError(
        f"the network returns a {type(returned).__name__}{keys}, not logits: say where they "
        f"are, for instance output=lambda out: out[0]"
    )
