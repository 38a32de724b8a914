"""Which pseudo-OOD fits which inputs, by name, and how it is applied to a whole input structure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.layout import colours_last
from tulip_ood.shifts.average import average
from tulip_ood.shifts.bands import bands
from tulip_ood.shifts.blur import blur
from tulip_ood.shifts.corner import corner
from tulip_ood.shifts.cut_together import cut_together
from tulip_ood.shifts.dead_leaves import dead_leaves
from tulip_ood.shifts.fractal import fractal
from tulip_ood.shifts.grating import grating
from tulip_ood.shifts.mild import MILD
from tulip_ood.shifts.negative import negative
from tulip_ood.shifts.noise import noise
from tulip_ood.shifts.patches import patches
from tulip_ood.shifts.random_phase import random_phase
from tulip_ood.shifts.spectrum_noise import spectrum_noise
from tulip_ood.shifts.tile import tile
from tulip_ood.shifts.tiny_patch import tiny_patch
from tulip_ood.shifts.tokens import drawn_tokens, shuffled_tokens, spliced_tokens
from tulip_ood.shifts.upside_down import upside_down
from tulip_ood.shifts.vectors import mixed_rows, noisy_rows, permuted_columns

__all__ = ["IMAGES", "TOKENS", "VECTORS", "Range", "domain_of", "kinds_for", "shift"]

NumberKind = Callable[[Tensor, Tensor, Tensor, int], Tensor]
TokenKind = Callable[[Tensor, Tensor, int], Tensor]

IMAGES: dict[str, NumberKind] = {
    kind.__name__: kind
    for kind in (
        average,
        patches,
        negative,
        noise,
        upside_down,
        blur,
        corner,
        tile,
        tiny_patch,
        spectrum_noise,
        random_phase,
        dead_leaves,
        grating,
        fractal,
        bands,
        cut_together,
    )
}
"""All kinds for images. The first seven are those of `self-1` and `self-2`."""

VECTORS: dict[str, NumberKind] = {
    kind.__name__: kind for kind in (mixed_rows, permuted_columns, noisy_rows)
}
TOKENS: dict[str, TokenKind] = {
    kind.__name__: kind for kind in (shuffled_tokens, spliced_tokens, drawn_tokens)
}

_SELF_1 = {"images": 7, "vectors": len(VECTORS), "tokens": len(TOKENS)}
# The names under which models take their main input, where there are several.
_MAIN = ("pixel_values", "input_ids", "x", "inputs", "input")


@dataclass(frozen=True)
class Range:
    """The smallest and largest validation value of each channel (or column).

    Example:
        >>> import torch
        >>> Range.of(torch.tensor([[0.0, 5.0], [1.0, 3.0]])).high
        tensor([[1., 5.]])
    """

    low: Tensor
    high: Tensor

    @staticmethod
    def of(x: Tensor) -> "Range":
        """The range of rows [N, …], per channel for images, per column otherwise."""
        dims = [0, *range(2, x.ndim)] if x.ndim == 4 else [0]
        wide = x if x.dtype == torch.float64 else x.to(torch.float32)
        return Range(wide.amin(dim=dims, keepdim=True), wide.amax(dim=dims, keepdim=True))


def domain_of(x: Tensor) -> str:
    """What kind of input a tensor is: "images", "vectors" or "tokens".

    Example:
        >>> import torch
        >>> domain_of(torch.zeros(1, 3, 32, 32)), domain_of(torch.zeros(1, 5))
        ('images', 'vectors')
        >>> domain_of(torch.zeros(1, 5, dtype=torch.int64))
        'tokens'
    """
    if x.ndim == 4 and min(x.shape[-2:]) >= 4 and (x.is_floating_point() or x.dtype == torch.uint8):
        return "images"
    if x.is_floating_point() and x.ndim >= 2:
        return "vectors"
    if not x.is_floating_point() and x.ndim == 2 and x.dtype not in (torch.bool, torch.uint8):
        return "tokens"
    raise InputError(
        f"no pseudo-OOD is known for inputs of shape {list(x.shape)} and {x.dtype}: pass your own "
        f"kinds (tune={{'kinds': [function]}}), an OOD loader, or use recipe='balanced'"
    )


def kinds_for(domain: str) -> tuple[str, ...]:
    """The kinds that the recipes `self-1` and `self-2` use for a domain.

    Example:
        >>> kinds_for("vectors")
        ('mixed_rows', 'permuted_columns', 'noisy_rows')
    """
    every = {"images": list(IMAGES), "vectors": list(VECTORS), "tokens": list(TOKENS)}
    return tuple(every[domain][: _SELF_1[domain]])


def main_tensor(inputs: object) -> str | int | None:
    """Where the input that is to be changed lies: a key, an index, or None for a bare tensor."""
    if isinstance(inputs, Tensor):
        return None
    if isinstance(inputs, Mapping):
        for name in _MAIN:
            if isinstance(inputs.get(name), Tensor):
                return name
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                return str(name)
    if isinstance(inputs, tuple):
        for index, value in enumerate(inputs):
            if isinstance(value, Tensor):
                return index
    raise InputError(f"no tensor was found in the inputs ({type(inputs).__name__})")


def shift(inputs: object, kind: str, *, seed: int, within: Range | None = None) -> object:
    """Inputs with their main tensor changed; results are clamped to the validation range.

    Args:
        inputs: A tensor, tuple or mapping, as the model takes it.
        kind: A name from `IMAGES`, `VECTORS` or `TOKENS`, or of a mild change (`MILD`).
        seed: The seed of what is random in the kind.
        within: The range of the validation data; by default that of these inputs.

    Example:
        >>> import torch
        >>> shift(torch.tensor([[[[0.0, 1.0]]]]), "negative", seed=0).flatten()
        tensor([1., 0.])
        >>> shift(torch.zeros(1, 3), "fog", seed=0)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown kind of pseudo-OOD 'fog'; there are average, patches, \
negative, noise, upside_down, blur, corner, tile, tiny_patch, spectrum_noise, random_phase, \
dead_leaves, grating, fractal, bands, cut_together, mixed_rows, permuted_columns, noisy_rows, \
shuffled_tokens, spliced_tokens, drawn_tokens
    """
    place = main_tensor(inputs)
    if place is None:
        assert isinstance(inputs, Tensor)
        return _shifted(inputs, None, kind, seed, within)
    if isinstance(inputs, Mapping):
        changed = dict(inputs)
        mask = inputs.get("attention_mask")
        changed[place] = _shifted(inputs[place], mask, kind, seed, within)
        return changed
    assert isinstance(inputs, tuple)
    assert isinstance(place, int)
    return (
        *inputs[:place],
        _shifted(inputs[place], None, kind, seed, within),
        *inputs[place + 1 :],
    )


def _shifted(x: Tensor, mask: Tensor | None, kind: str, seed: int, within: Range | None) -> Tensor:
    if kind in TOKENS:
        attended = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.bool()
        return TOKENS[kind](x, attended, seed)
    change = IMAGES.get(kind) or VECTORS.get(kind) or _mild(kind)
    if change is None:
        known = ", ".join([*IMAGES, *VECTORS, *TOKENS])
        raise InputError(f"unknown kind of pseudo-OOD {kind!r}; there are {known}")
    limits = within if within is not None else Range.of(x)
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    low, high = limits.low.to(wide.dtype), limits.high.to(wide.dtype)
    changed = torch.minimum(torch.maximum(change(wide, low, high, seed), low), high)
    return changed.to(x.dtype) if x.is_floating_point() else changed.round().to(x.dtype)


def _mild(kind: str) -> NumberKind | None:
    """A mild change, also of images whose colours come last."""
    change = MILD.get(kind)
    if change is None:
        return None

    def changed(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
        if x.ndim != 4 or not colours_last(x):
            return change(x, low, high, seed)
        # Where colours come last a range holds one value a row: all colours have the same.
        one = (low.amin(), high.amax())
        return change(x.movedim(-1, 1), *one, seed).movedim(1, -1)

    return changed
