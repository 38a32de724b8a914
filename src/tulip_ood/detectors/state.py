"""Frozen dataclasses to JSON and tensors, and back: how what was learned is stored."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from torch import Tensor

__all__ = ["pack", "unpack"]

T = TypeVar("T")


def pack(state: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers and texts of a dataclass (nested ones included), and its tensors by path.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.prediction import Reference
        >>> values, tensors = pack(Reference(torch.zeros(2)))
        >>> values, list(tensors)
        ({}, ['quantiles'])
    """
    values: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif dataclasses.is_dataclass(value):
            values[field.name], inner = pack(value)
            tensors |= {f"{field.name}.{name}": tensor for name, tensor in inner.items()}
        else:
            values[field.name] = value
    return values, tensors


def unpack(kind: type[T], values: dict[str, Any], tensors: dict[str, Tensor]) -> T:
    """The dataclass that `pack` took apart.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.prediction import Reference
        >>> unpack(Reference, *pack(Reference(torch.zeros(2)))).quantiles
        tensor([0., 0.])
    """
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        inner = _dataclass_in(hints[field.name])
        if field.name in tensors:
            arguments[field.name] = tensors[field.name]
        elif inner is not None and values.get(field.name) is not None:
            prefix = f"{field.name}."
            below = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            arguments[field.name] = unpack(inner, values[field.name], below)
        else:
            arguments[field.name] = values[field.name]
    return kind(**arguments)


def _dataclass_in(hint: Any) -> Any:
    """X, where the annotation is X or X | None and X is a dataclass."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)
