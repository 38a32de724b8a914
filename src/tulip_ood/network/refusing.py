"""What PyTorch says to inputs or devices that do not fit, in words of ours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tulip_ood.errors import InputError, RefusedError, TulipError, in_one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["network_refuses", "on_device"]


def network_refuses(error: Exception, inputs: "Tensor", keys: Sequence[str] = ()) -> Exception:
    """What PyTorch says when inputs do not fit a network, as an error of ours.

    Args:
        error: What was raised.
        inputs: The inputs, or the first tensor of them.
        keys: Under which names the network was given them, if they were a mapping.

    Example:
        >>> import torch
        >>> print(network_refuses(RuntimeError("size mismatch"), torch.zeros(2, 3, 8, 8)))
        the network cannot run on inputs of shape [N, 3, 8, 8]: size mismatch
        >>> print(network_refuses(RuntimeError("expected float"), torch.zeros(2, 3).byte()))
        the network cannot run on inputs of shape [N, 3] and uint8: expected float
    """
    if isinstance(error, TulipError):
        return error
    reason = in_one_line(error)
    if keys:
        return RefusedError(
            f"the network cannot run on inputs with the keys {', '.join(map(str, keys))}, which "
            f"are passed as model({keys[0]}=…): {reason}. Give it what its forward() takes"
        )
    shape = ", ".join(map(str, inputs.shape[1:]))
    kind = hint = ""
    if not inputs.is_floating_point():
        kind = f" and {str(inputs.dtype).removeprefix('torch.')}"
    if kind and inputs.ndim == 4:
        hint = ". If it takes real numbers, convert and normalise images as in training"
    return RefusedError(
        f"the network cannot run on inputs of shape [N, {shape}]{kind}: {reason}{hint}"
    )


@contextmanager
def on_device(device: "torch.device | str | None") -> Iterator[None]:
    """While weights are copied to a device that the user has named (or not: None).

    Example:
        >>> with on_device("meta"):
        ...     pass
        Traceback (most recent call last):
        tulip_ood.errors.InputError: device='meta' cannot be used here: nothing is computed there
    """
    try:
        if str(device) == "meta":
            raise RuntimeError("nothing is computed there")
        yield
    except (AssertionError, RuntimeError) as error:
        if device is None:
            raise
        raise InputError(f"device={str(device)!r} cannot be used here: {error}") from error
