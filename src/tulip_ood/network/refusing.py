"""What a network says to inputs that do not fit it, in words of ours."""

from typing import TYPE_CHECKING

from tulip_ood.errors import RefusedError, TulipError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["network_refuses"]


def network_refuses(error: Exception, inputs: "Tensor") -> Exception:
    """What PyTorch says when inputs do not fit a network, as an error of ours.

    Example:
        >>> import torch
        >>> print(network_refuses(RuntimeError("size mismatch"), torch.zeros(2, 3, 8, 8)))
        the network cannot run on inputs of shape [N, 3, 8, 8]: size mismatch
    """
    if isinstance(error, TulipError):
        return error
    shape = ", ".join(map(str, inputs.shape[1:]))
    reason = " ".join(str(error).split())[:300]
    return RefusedError(f"the network cannot run on inputs of shape [N, {shape}]: {reason}")
