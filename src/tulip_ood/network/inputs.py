"""What a model is fed: a tensor, a tuple, or a mapping (Hugging Face).

Tensors in a structure share their first dimension, the rows; anything else in it (None, a flag) is
a constant that goes along. A *row* is the structure cut down to one input.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import check_seed

__all__ = [
    "arguments",
    "chunks",
    "collate",
    "constants",
    "count_rows",
    "finite_rows",
    "map_tensors",
    "replace",
    "row_bytes",
    "row_digests",
    "signature",
    "split_batch",
    "structure",
    "take",
    "tensors",
    "without_tensors",
]

Inputs = Any  # a tensor, a tuple or list, or a mapping; nested

_LABEL_KEYS = ("labels", "label")


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same structure with `function` applied to every tensor; mappings become dicts.

    Example:
        >>> import torch
        >>> map_tensors(lambda t: t + 1, {"x": torch.zeros(2), "flag": True})
        {'x': tensor([1., 1.]), 'flag': True}
    """
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, np.ndarray):
        return function(torch.as_tensor(inputs))
    if isinstance(inputs, Mapping):
        return {key: map_tensors(function, value) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map_tensors(function, value) for value in inputs)
    return inputs


def tensors(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its place in the structure, in a fixed order.

    Example:
        >>> import torch
        >>> [place for place, _ in tensors({"a": torch.zeros(1), "b": (torch.zeros(1),)})]
        ['a', 'b.0']
    """

    def walk(value: Inputs, place: str) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, Tensor):
            yield place, value
        elif isinstance(value, np.ndarray):
            yield place, torch.as_tensor(value)
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                yield from walk(value[key], f"{place}.{key}" if place else str(key))
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                yield from walk(item, f"{place}.{index}" if place else str(index))

    return walk(inputs, "")


def constants(inputs: Inputs) -> tuple[tuple[str, tuple[str, str]], ...]:
    """Everything that is no tensor: its place, and its type and value as text.

    Example:
        >>> import torch
        >>> constants({"x": torch.zeros(1), "scale": 2.0})
        (('scale', ('float', '2.0')),)
    """

    def walk(value: Inputs, place: str) -> Iterator[tuple[str, tuple[str, str]]]:
        if isinstance(value, Mapping):
            for key in sorted(value, key=str):
                yield from walk(value[key], f"{place}.{key}" if place else str(key))
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                yield from walk(item, f"{place}.{index}" if place else str(index))
        elif not isinstance(value, Tensor | np.ndarray):
            yield place, (type(value).__name__, repr(value))

    return tuple(walk(inputs, ""))


def replace(inputs: Inputs, place: str, value: Tensor) -> Inputs:
    """The same structure with another tensor at one place (as `tensors` names it).

    Example:
        >>> import torch
        >>> replace({"a": (torch.zeros(1), 7)}, "a.0", torch.ones(1))
        {'a': (tensor([1.]), 7)}
    """
    if not place:
        return value
    key, _, rest = place.partition(".")
    if isinstance(inputs, Mapping):
        return {k: replace(v, rest, value) if str(k) == key else v for k, v in inputs.items()}
    return tuple(replace(v, rest, value) if str(i) == key else v for i, v in enumerate(inputs))


def count_rows(inputs: Inputs) -> int:
    """How many inputs there are; refuses a structure without tensors or with unequal ones.

    Example:
        >>> import torch
        >>> count_rows({"ids": torch.zeros(4, 7), "mask": torch.zeros(4, 7)})
        4
    """
    counts = {place: t.shape[0] if t.ndim else -1 for place, t in tensors(inputs)}
    if not counts:
        raise without_tensors(inputs)
    if len(set(counts.values())) != 1 or -1 in counts.values():
        found = ", ".join(f"{place or 'input'}: {n}" for place, n in counts.items())
        raise InputError(f"all tensors of an input must have the same first dimension; got {found}")
    return next(iter(counts.values()))


def without_tensors(inputs: Inputs) -> InputError:
    """What is said of inputs that hold no tensor.

    Example:
        >>> print(without_tensors([[1.0, 2.0]]))
        inputs must be a tensor, or a tuple or mapping of tensors; got list of length 1: put \
numbers in a tensor, torch.tensor(…)
    """
    hint = ": put numbers in a tensor, torch.tensor(…)" if isinstance(inputs, tuple | list) else ""
    return InputError(
        f"inputs must be a tensor, or a tuple or mapping of tensors; got {_kind(inputs)}{hint}"
    )


def take(inputs: Inputs, index: Tensor | slice) -> Inputs:
    """Some of the rows.

    Example:
        >>> import torch
        >>> take(torch.arange(5), slice(1, 3))
        tensor([1, 2])
    """
    return map_tensors(lambda t: t[index], inputs)


def clone_row(inputs: Inputs, i: int) -> Inputs:
    """Row i alone, in memory of its own (a view would keep its whole batch alive)."""
    return map_tensors(lambda t: t[i : i + 1].clone(), inputs)


def chunks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """Consecutive pieces of at most `size` rows.

    Example:
        >>> import torch
        >>> [piece.shape[0] for piece in chunks(torch.zeros(5), 2)]
        [2, 2, 1]
    """
    for first in range(0, count_rows(inputs), size):
        yield take(inputs, slice(first, first + size))


def collate(rows: list[Inputs]) -> Inputs:
    """Rows of equal shape, put together again.

    Example:
        >>> import torch
        >>> collate([torch.zeros(1, 3), torch.ones(1, 3)]).shape
        torch.Size([2, 3])
    """
    first = rows[0]
    if isinstance(first, Tensor):
        return torch.cat(rows)
    if isinstance(first, Mapping):
        return {key: collate([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(collate([row[index] for row in rows]) for index in range(len(first)))
    return first


def signature(inputs: Inputs, floating: torch.dtype | None = None) -> tuple[Any, ...]:
    """Structure, dtypes, shapes without the row dimension, constants: equal ones can be collated.

    With `floating`, real numbers count as being of that dtype.

    Example:
        >>> signature(torch.zeros(9, 3))
        (('', torch.float32, (3,)),)
    """
    kinds = (
        (place, floating if floating and t.is_floating_point() else t.dtype, tuple(t.shape[1:]))
        for place, t in tensors(inputs)
    )
    return (*kinds, *constants(inputs))


def row_bytes(inputs: Inputs) -> int:
    """The size of one row in memory.

    Example:
        >>> import torch
        >>> row_bytes(torch.zeros(9, 3))
        12
    """
    n = max(1, count_rows(inputs))
    return sum(t.numel() * t.element_size() for _, t in tensors(inputs)) // n


def finite_rows(inputs: Inputs, device: torch.device | None = None) -> Tensor:
    """Which rows hold neither NaN nor Inf, [N], on the CPU or where it is wanted.

    Example:
        >>> finite_rows(torch.tensor([[1.0], [float("nan")]]))
        tensor([ True, False])
    """
    good = torch.ones(count_rows(inputs), dtype=torch.bool, device=device or "cpu")
    for _, t in tensors(inputs):
        if t.is_floating_point() and t.numel():
            flat = t.reshape(t.shape[0], -1)
            # NaN is both the smallest and the largest of its row; nothing waits for a GPU.
            good &= (flat.amin(dim=1).isfinite() & flat.amax(dim=1).isfinite()).to(good.device)
    return good


def row_digests(inputs: Inputs, *, seed: int) -> list[bytes]:
    """A seeded 16-byte fingerprint of every row's content.

    Sorting by it is a shuffle that does not depend on the order in which rows came.

    Example:
        >>> import torch
        >>> a, b, c = row_digests(torch.tensor([[1.0], [2.0], [1.0]]), seed=0)
        >>> a == c, a == b
        (True, False)
    """
    key = check_seed(seed).to_bytes(8, "little", signed=True)
    n = count_rows(inputs)
    along = "".join(f"{place}|{kind}|{value};" for place, (kind, value) in constants(inputs))
    states = [hashlib.blake2b(along.encode(), key=key, digest_size=16) for _ in range(n)]
    for place, t in tensors(inputs):
        kind = f"{place}|{t.dtype}|{tuple(t.shape[1:])}".encode()
        flat = t.detach().cpu().contiguous().reshape(n, -1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else flat.numpy()
        for state, row in zip(states, raw, strict=True):
            state.update(kind)
            state.update(row.tobytes())
    return [state.digest() for state in states]


def split_batch(batch: Any) -> tuple[Inputs, Tensor]:
    """(inputs, labels) of one batch of a loader: a pair, or a mapping with `labels` or `label`.

    Example:
        >>> import torch
        >>> split_batch({"x": torch.zeros(2, 3), "labels": torch.tensor([0, 1])})[1]
        tensor([0, 1])
    """
    if isinstance(batch, Mapping):
        for key in _LABEL_KEYS:
            if key in batch:
                inputs = {name: value for name, value in batch.items() if name != key}
                return inputs, _labels(batch[key])
        keys = ", ".join(map(str, batch))
        raise InputError(f"a mapping batch must have the key 'labels' or 'label'; got {keys}")
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], _labels(batch[1])
    raise InputError(
        f"a batch must be (inputs, labels) or a mapping with 'labels'; got {_kind(batch)}. "
        f"If the model takes several inputs, put them in one tuple: ((x1, x2), labels)"
    )


def _labels(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"labels must be numbers, got {_kind(given)}: {error}") from error


def structure(inputs: Inputs) -> tuple[tuple[str, str], ...]:
    """How a model is fed: the place of every tensor, its dimensions and its kind of numbers.

    Example:
        >>> import torch
        >>> structure({"ids": torch.zeros(4, 7, dtype=torch.int64)})
        (('ids', '2-D integer'),)
    """
    return tuple((place, f"{t.ndim}-D {_numbers(t)}") for place, t in tensors(inputs))


def inputs_only(batch: Any, known: Collection[tuple[tuple[str, str], ...]] | None = None) -> Inputs:
    """The inputs of a batch that may or may not carry labels (an OOD loader).

    Whether (a, b) are two inputs or an input with its label cannot be seen from the batch. Where
    the structures of ID inputs are `known`, the reading is taken that has one of them.
    """
    readings = [batch]
    if isinstance(batch, Mapping):
        readings.insert(0, {k: value for k, value in batch.items() if k not in _LABEL_KEYS})
    elif isinstance(batch, tuple | list) and len(batch) in (1, 2):
        readings.insert(0, batch[0])
    if known is None:
        return readings[0]
    for reading in readings:
        if structure(reading) in known:
            return reading
    raise InputError(
        f"a batch of OOD inputs, with labels or without, must hold what the ID inputs are, "
        f"{' or '.join(map(_shown, sorted(known)))}; got {_shown(structure(batch)) or _kind(batch)}"
    )


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with them: model(x), model(*x) or model(**x).

    Example:
        >>> arguments({"input_ids": 7})
        ((), {'input_ids': 7})
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _kind(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return type(value).__name__ + length


def _numbers(t: Tensor) -> str:
    return "float" if t.is_floating_point() else "complex" if t.is_complex() else "integer"


def _shown(kinds: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{place}: {kind}" if place else f"a {kind} tensor" for place, kind in kinds)
