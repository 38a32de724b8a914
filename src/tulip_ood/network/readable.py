"""Inputs as they come from a user: without their history, and such that they can be read."""

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.inputs import Inputs, map_tensors, tensors, without_tensors

__all__ = ["readable"]


def readable(inputs: Inputs) -> Inputs:
    """The same inputs, detached; refuses tensors that rows of real numbers cannot be read from.

    Example:
        >>> readable(torch.ones(1, 2, requires_grad=True)).requires_grad
        False
        >>> readable(torch.zeros(1, 2, device="meta"))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: inputs on the meta device have no data: give real ones
    """
    if next(tensors(inputs), None) is None:
        raise without_tensors(inputs)  # while a list is still one
    return map_tensors(_checked, inputs)


def _checked(tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta":
        raise InputError("inputs on the meta device have no data: give real ones")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InputError(
            f"inputs must be plain tensors, got {kind} ones: pass x.to_dense(), or pad them to "
            f"one size"
        )
    if tensor.is_complex():
        raise InputError(
            "inputs must be real, got complex numbers: pass torch.view_as_real(x), and let the "
            "model put them together"
        )
    return tensor.detach()
