"""What a network says to inputs that do not fit it, in words of ours."""

import contextlib
from collections.abc import Iterator

from torch import Tensor

from tulip_ood.errors import ModelError, TulipError
from tulip_ood.network import inputs as structures
from tulip_ood.network.gathering import is_out_of_memory
from tulip_ood.network.inputs import Inputs

__all__ = ["in_our_words", "network_refuses"]


_SAID = (RuntimeError, AssertionError, IndexError, ValueError)


def network_refuses(error: Exception, inputs: Tensor) -> Exception:
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
    return ModelError(f"the network cannot run on inputs of shape [N, {shape}]: {reason}")


@contextlib.contextmanager
def in_our_words(inputs: Inputs) -> Iterator[None]:
    """While a network runs on such inputs: what PyTorch says against them, as an error of ours.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 5)
        >>> with in_our_words(x):
        ...     torch.nn.Linear(4, 3)(x)
        Traceback (most recent call last):
        tulip_ood.errors.ModelError: the network cannot run on inputs of shape [N, 5]: mat1 and ...
    """
    try:
        yield
    except Exception as error:
        found = next((tensor for _, tensor in structures.tensors(inputs)), None)
        # Errors of other classes, or of the caller's own, were not said by PyTorch.
        if found is None or type(error) not in _SAID or is_out_of_memory(error):
            raise
        raise network_refuses(error, found) from error
