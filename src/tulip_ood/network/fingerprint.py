"""What tells one network from another: structure and numbers; and how many can be perturbed."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["fingerprint", "floating_kinds", "hash_tensor", "perturbable_share"]


def fingerprint(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of the architecture (names, shapes, classes) and of the weights and buffers.

    Args:
        module: The network, for its structure.
        state: Its parameters and buffers by name.

    Example:
        >>> net = torch.nn.Linear(2, 2)
        >>> sorted(fingerprint(net, dict(net.named_parameters())))
        ['architecture_sha256', 'weights_sha256']
    """
    shape, content = hashlib.sha256(), hashlib.sha256()
    for name, part in module.named_modules():
        shape.update(f"{name}:{type(part).__qualname__};".encode())
    for name in sorted(state):
        kind = f"{name}:{tuple(state[name].shape)}"
        shape.update(kind.encode())
        content.update(f"{kind}:{state[name].dtype};".encode())
        hash_tensor(content, state[name])
    return {"architecture_sha256": shape.hexdigest(), "weights_sha256": content.hexdigest()}


def floating_kinds(state: Mapping[str, Tensor]) -> list[str]:
    """Which floating-point numbers a network's weights and buffers are.

    Example:
        >>> floating_kinds(dict(torch.nn.Linear(2, 2).half().named_parameters()))
        ['float16']
    """
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return sorted(str(kind).removeprefix("torch.") for kind in kinds)


def hash_tensor(state: Any, tensor: Tensor) -> None:
    """Add a tensor's bytes to a hash.

    Example:
        >>> state = hashlib.sha256()
        >>> hash_tensor(state, torch.zeros(2))
        >>> state.hexdigest()[:8]
        'af5570f5'
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    state.update(flat.view(torch.uint8).numpy().data)


def perturbable_share(module: nn.Module) -> float:
    """The share of a network's weights that are floating-point, so that noise can be added.

    Weights are all parameters and what quantised layers hold in their place: quantised tensors,
    and matrices of 8-bit integers among the buffers.

    Example:
        >>> net = torch.nn.Linear(3, 1, bias=False)
        >>> net.register_buffer("packed", torch.zeros(3, 3, dtype=torch.int8))
        >>> perturbable_share(net)
        0.25
    """
    floating = whole = 0
    for parameter in module.parameters():
        whole += parameter.numel()
        floating += parameter.numel() if parameter.is_floating_point() else 0
    for tensor in _flat(module.state_dict()):
        matrix = tensor.dtype in (torch.int8, torch.uint8) and tensor.ndim > 1
        if tensor.is_quantized or (matrix and not isinstance(tensor, nn.Parameter)):
            whole += tensor.numel()
    return floating / whole if whole else 0.0


def _flat(value: Any) -> Iterator[Tensor]:
    """Quantised layers put tuples of tensors into their state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
