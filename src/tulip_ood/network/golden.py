"""Synthetic inputs of the right shape, made again at will: the golden inputs of a detector file."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.inputs import Inputs
from tulip_ood.numerics import random

__all__ = ["check_alike", "describe_inputs", "synthetic_inputs", "unlike"]


def describe_inputs(inputs: Inputs, *, ranges: bool = True) -> dict[str, Any]:
    """The structure, dtypes, shapes and ranges of some inputs, for a JSON header.

    Args:
        inputs: As the model takes them.
        ranges: Whether to look at the numbers; a GPU is waited for.

    Example:
        >>> import torch
        >>> describe_inputs(torch.tensor([[0.0, 1.0]]))
        {'kind': 'tensor', 'dtype': 'float32', 'shape': [2], 'low': 0.0, 'high': 1.0}
    """
    if isinstance(inputs, Tensor):
        found: dict[str, Any] = {
            "kind": "tensor",
            "dtype": str(inputs.dtype).removeprefix("torch."),
            "shape": list(inputs.shape[1:]),
        }
        if ranges:
            found["low"] = float(inputs.min()) if inputs.numel() else 0.0
            found["high"] = float(inputs.max()) if inputs.numel() else 0.0
        return found
    if isinstance(inputs, dict):
        parts = {key: describe_inputs(value, ranges=ranges) for key, value in inputs.items()}
        return {"kind": "dict", "items": parts}
    if isinstance(inputs, tuple):
        return {"kind": "tuple", "items": [describe_inputs(v, ranges=ranges) for v in inputs]}
    if inputs is None or isinstance(inputs, bool | int | float | str):
        return {"kind": "constant", "value": inputs}
    raise InputError(f"an input holds a {type(inputs).__name__}, which a file cannot describe")


def check_alike(inputs: Inputs, expected: dict[str, Any], given: Any = None) -> None:
    """Refuse inputs of another structure or number of dimensions than the description's.

    Args:
        inputs: As the model takes them.
        expected: The description.
        given: What the user gave, of which lists have become tuples.

    Example:
        >>> import torch
        >>> check_alike(torch.zeros(3, 8, 8), describe_inputs(torch.zeros(1, 3, 8, 8)))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: the detector was fitted on inputs of shape [N, 3, 8, 8], got \
[N, 8, 8]: add the batch dimension, x.unsqueeze(0)
    """
    came = describe_inputs(inputs, ranges=False)
    if came["kind"] != expected["kind"]:
        hint = ""
        if (came["kind"], expected["kind"]) == ("tuple", "tensor"):
            hint = ": pass a batch without its labels, or torch.stack(…) of single inputs"
        kind = "list" if isinstance(given, list) else came["kind"]
        raise InputError(
            f"the detector was fitted on inputs that are a {expected['kind']}, got a {kind}{hint}"
        )
    if came["kind"] == "dict" and set(came["items"]) != set(expected["items"]):
        fitted, keys = (", ".join(sorted(map(str, d["items"]))) for d in (expected, came))
        raise InputError(f"the detector was fitted on inputs with the keys {fitted}; got {keys}")
    if came["kind"] != "tensor" or len(came["shape"]) == len(expected["shape"]):
        return
    single = len(came["shape"]) == len(expected["shape"]) - 1
    raise InputError(
        f"the detector was fitted on inputs of shape {_shape(expected)}, got {_shape(came)}"
        + (": add the batch dimension, x.unsqueeze(0)" if single else "")
    )


def unlike(inputs: Inputs, expected: dict[str, Any]) -> str:
    """What may have made a network fail: how inputs differ from the description; "" if not.

    Example:
        >>> import torch
        >>> unlike({"ids": torch.tensor([[70]])}, describe_inputs({"ids": torch.tensor([[9]])}))
        'whole numbers from 70 to 70 (ids); the first that it was fitted on are 9 to 9'
    """
    found = list(_unlike(describe_inputs(inputs), expected, ""))
    return found[0] if found else ""


def _unlike(came: dict[str, Any], expected: dict[str, Any], place: str) -> Iterator[str]:
    if came["kind"] != expected["kind"]:
        return
    if came["kind"] in ("dict", "tuple"):
        parts, known = came["items"], expected["items"]
        names = parts if isinstance(parts, dict) else range(min(len(parts), len(known)))
        for name in names:
            yield from _unlike(parts[name], known[name], f" ({name})")
    elif came["kind"] == "tensor":
        dtypes = [getattr(torch, spec["dtype"]) for spec in (came, expected)]
        if dtypes[0].is_floating_point != dtypes[1].is_floating_point:
            yield f"{came['dtype']} inputs{place}; it was fitted on {expected['dtype']}"
        elif not dtypes[0].is_floating_point and (
            came["high"] > expected["high"] or came["low"] < expected["low"]
        ):
            yield (
                f"whole numbers from {came['low']:g} to {came['high']:g}{place}; the first that it "
                f"was fitted on are {expected['low']:g} to {expected['high']:g}"
            )
        elif came["shape"] != expected["shape"]:
            yield f"inputs of shape {_shape(came)}{place}; it was fitted on {_shape(expected)}"


def _shape(spec: dict[str, Any]) -> str:
    return "[" + ", ".join(["N", *map(str, spec["shape"])]) + "]"


def synthetic_inputs(description: dict[str, Any], n: int, *, seed: int = 0) -> Inputs:
    """n inputs of that description: uniform in the range; whole numbers for whole-number dtypes.

    Masks and flags (whole numbers in 0…1) are all 1: an input that is masked out as a whole has
    no output.

    Example:
        >>> import torch
        >>> spec = describe_inputs(torch.tensor([[0.0, 1.0]]))
        >>> synthetic_inputs(spec, 16).shape
        torch.Size([16, 2])
    """

    def build(spec: dict[str, Any], place: str) -> Inputs:
        kind = spec["kind"]
        if kind == "constant":
            return spec["value"]
        if kind == "dict":
            return {key: build(item, f"{place}.{key}") for key, item in spec["items"].items()}
        if kind == "tuple":
            return tuple(build(item, f"{place}.{i}") for i, item in enumerate(spec["items"]))
        dtype = getattr(torch, spec["dtype"])
        shape = (n, *spec["shape"])
        low, high = spec["low"], spec["high"]
        if dtype.is_floating_point:
            unit = random.uniform(shape, seed=seed, name=f"golden{place}")
            return (low + (high - low) * unit).to(dtype)
        if high <= 1:
            return torch.full(shape, high, dtype=torch.float32).to(dtype)
        span = int(high) - int(low) + 1
        return (int(low) + random.integers(shape, span, seed=seed, name=f"golden{place}")).to(dtype)

    return build(description, "")
