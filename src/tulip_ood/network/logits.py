"""Where the logits are in what a network returns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tulip_ood.errors import InputError, ModelError, TulipError, kind_and_text

__all__ = ["check_function", "find_logits"]

Output = Callable[[Any], Tensor]


def check_function(output: Any) -> Output | None:
    """What a user gives as `output=`, if it can be called; refuses anything else.

    Example:
        >>> check_function("logits")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: output='logits' is a str: expected a function that picks the \
logits, for instance output=lambda out: out["logits"]
    """
    if output is not None and not callable(output):
        key = output if isinstance(output, str) else "logits"
        raise InputError(
            f"output={output!r} is a {type(output).__name__}: expected a function that picks the "
            f'logits, for instance output=lambda out: out["{key}"]'
        )
    picks: Output | None = output
    return picks


def find_logits(returned: Any, output: Output | None = None) -> Tensor:
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
        return _picked(returned, output)
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        found: Tensor = returned["logits"]
        return found
    if isinstance(getattr(returned, "logits", None), Tensor):
        attribute: Tensor = returned.logits
        return attribute
    what, example = _shown(returned)
    raise ModelError(
        f"the network returns {what}, not logits: say where they are, for instance "
        f"output=lambda out: {example} (on the command line, name a function whose network returns "
        f"them alone)"
    )


def _picked(returned: Any, output: Output) -> Tensor:
    try:
        picked = output(returned)
    except TulipError:
        raise
    except Exception as error:
        found, example = _shown(returned)
        raise ModelError(
            f"output=… fails on what the network returns, {found}: {kind_and_text(error)}. It is "
            f"called with all of that and picks the logits, for instance output=lambda out: "
            f"{example}"
        ) from error
    if not isinstance(picked, Tensor):
        raise ModelError(f"output=… must return a tensor, it gave {type(picked).__name__}")
    return picked


def _shown(returned: Any) -> tuple[str, str]:
    """What was returned, in words, and how something in it that may be the logits is reached."""
    kind = type(returned).__name__
    if isinstance(returned, Tensor):
        return f"a tensor of shape {list(returned.shape)}", "out"
    if isinstance(returned, Mapping):
        first = next((k for k, value in returned.items() if isinstance(value, Tensor)), "logits")
        return f"a {kind} with keys {', '.join(map(str, returned))}", f"out[{first!r}]"
    if isinstance(returned, tuple | list):
        at = next((i for i, value in enumerate(returned) if isinstance(value, Tensor)), 0)
        return f"a {kind} of length {len(returned)}", f"out[{at}]"
    if isinstance(returned, np.ndarray):
        return "a NumPy array", "torch.as_tensor(out)"
    own = getattr(returned, "__dict__", {})
    held = [name for name, value in own.items() if isinstance(value, Tensor)]
    if held:
        return f"a {kind} with the tensors {', '.join(held)}", f"out.{held[0]}"
    return ("None" if returned is None else f"a {kind}"), "out[0]"
