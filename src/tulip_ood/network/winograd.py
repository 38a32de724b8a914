"""3 × 3 convolutions with a quarter of the multiplications: Winograd's minimal filtering, F(4 × 4).

A direct convolution already runs as fast as a CPU multiplies, so what makes a pass cheaper is
multiplying less. The product of two polynomials of degrees 3 and 2 is known from its values at six
points; read backwards (transposed), that gives four outputs of a filter of three for six
multiplications instead of twelve, and in two dimensions 4 × 4 outputs for 36 instead of 144:

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        g: 3 × 3, d: a tile of 6 × 6, summed over channels

The sum over channels is 36 matrix products, the transforms are products with Kronecker's B ⊗ B and
A ⊗ A for every tile; they are small beside the first where there are many channels. Which layers
these are is a matter of shapes alone (`pays`), so that the same input gives the same output.

Kernels are transformed in every pass: held, they would take four times the memory of all perturbed
copies. What is between the products lies in memory that a thread keeps for itself (at most some
80 MiB): fetched anew from the system in every layer, it costs as much as a product.
"""

import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["convolve", "pays"]

_TILE = 4  # outputs of a tile, in each direction
_SIDE = _TILE + 2
_POINTS = _SIDE * _SIDE
# With the usual 0, ±1, ±2 rounding is more than twice that of these, which lie 1.6 times above a
# direct convolution's: points and their inverses, none far from 1.
_AT = (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)  # and infinity

_CHANNELS = 128  # with fewer, transforms take what products save
_LARGEST = 32  # height and width: beyond, this was not measured
_FULL = 12  # outputs that the tiles give on average, of 16
_TILES = 64  # in a batch: with fewer, the transform of the kernels is not worth it
# Bytes, twice, for what is between the products: best few, but kernels are read for every part.
_LEAST, _MOST = 4 << 20, 16 << 20
_KERNELS = 40 << 20  # bytes, for transformed kernels


class _Transforms(NamedTuple):
    kernel: Tensor  # [36, 9]: G ⊗ G
    inputs: Tensor  # [36, 36]: Bᵀ ⊗ Bᵀ
    outputs: Tensor  # [16, 36]: Aᵀ ⊗ Aᵀ


def pays(x: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether a convolution with stride 1 is one of those that are faster this way.

    Args:
        x: Inputs: [N, C, H, W].
        weight: Its kernels.
        padding: On every side.

    Example:
        >>> x, weight = torch.zeros(100, 256, 8, 8), torch.zeros(256, 256, 3, 3)
        >>> pays(x, weight, padding=1), pays(x[:1], weight, padding=1)
        (True, False)
    """
    n, channels, height, width = x.shape
    if weight.shape[1:] != (channels, 3, 3) or padding not in (0, 1):
        return False
    if min(channels, weight.shape[0]) < _CHANNELS or max(height, width) > _LARGEST:
        return False
    out = [size + 2 * padding - 2 for size in (height, width)]
    tiles = _tiles(out[0]) * _tiles(out[1])
    suits = out[0] * out[1] >= _FULL * tiles and n * tiles >= _TILES
    return suits and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: int = 1,
    *,
    added: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """A 3 × 3 convolution with stride 1, laid out with channels last.

    Args:
        x: Inputs: [N, C, H, W].
        weight: [O, C, 3, 3].
        bias: [O].
        padding: On every side, with zeros.
        added: Is added to the outputs; of their shape.
        relu: Whether a ReLU comes last.

    Example:
        >>> x, weight = torch.rand(2, 3, 7, 7), torch.rand(5, 3, 3, 3)
        >>> torch.allclose(convolve(x, weight), torch.conv2d(x, weight, padding=1), atol=1e-4)
        True
    """
    n, channels, *size = x.shape
    height, width = (one + 2 * padding - 2 for one in size)
    rows, columns = _tiles(height), _tiles(width)
    most = max(len(weight), channels) * rows * columns * _POINTS  # numbers between, for one image
    kept = list(_kernels(weight)) if _group(weight) == _POINTS else None
    fits = min(max(_LEAST, 4 * _POINTS * len(weight) * channels), _MOST)
    step = -(-n // -(-4 * n * most // fits))  # parts of about the same size
    overlaps = bool(height % _TILE or width % _TILE)  # tiles reach beyond the image
    images = x.permute(0, 2, 3, 1)
    framed = _room.take("framed", step, rows * _TILE + 2, columns * _TILE + 2, channels).zero_()
    out = x.new_empty(n, height, width, len(weight))
    for first in range(0, n, step):
        part = slice(first, first + step)
        tiles = _in_tiles(images[part], padding, framed)
        products = _room.take("one", _POINTS, len(tiles), len(weight))
        for points, kernel in kept or _kernels(weight):
            torch.bmm(tiles.transpose(0, 1)[points], kernel, out=products[points])
        made = _on_tiles(_transforms().outputs, products.transpose(0, 1), "two")
        made = made.view(-1, rows, columns, _TILE, _TILE, len(weight)).transpose(2, 3)
        whole = _room.take("one", *made.shape) if overlaps else out[part].view(made.shape)
        torch.add(made, 0.0 if bias is None else bias, out=whole)
        if overlaps:
            image = whole.view(-1, rows * _TILE, columns * _TILE, len(weight))
            out[part] = image[:, :height, :width]
    out = out.permute(0, 3, 1, 2)
    if added is not None:
        out += added
    return out.relu_() if relu else out


# ------------------------------------------------------------------------------- the transforms


def _tiles(size: int) -> int:
    """How many of them cover so many outputs."""
    return -(-size // _TILE)


@lru_cache(maxsize=1)
def _transforms() -> _Transforms:
    """From values at the points: a product of polynomials is interpolated from its six values."""
    with torch.inference_mode(False):
        at = torch.tensor(_AT, dtype=torch.float64, device="cpu")
        values = at[:, None] ** torch.arange(_SIDE, device="cpu")
        whole, inputs, kernel = (
            torch.cat([values[:, :n], torch.eye(n, dtype=torch.float64, device="cpu")[-1:]])
            for n in (_SIDE, _TILE, 3)  # at infinity there is the highest coefficient
        )
        ways = kernel, torch.linalg.inv(whole).T, inputs.T
        return _Transforms(*(torch.kron(way, way).float() for way in ways))


def _in_tiles(images: Tensor, padding: int, framed: Tensor) -> Tensor:
    """Bᵀ d B of every tile d of some [n, H, W, C]: [n · tiles, 36, C].

    Args:
        images: What is cut; tiles overlap by two.
        padding: On every side.
        framed: Room for them with a frame, in which there are zeros, and stay.
    """
    n, height, width, channels = images.shape
    framed = framed[:n]
    framed[:, padding : padding + height, padding : padding + width] = images
    by_image, by_row, by_column, _ = framed.stride()
    rows, columns = (framed.shape[i] // _TILE for i in (1, 2))
    cut = framed.as_strided(
        (n, rows, columns, _SIDE, _SIDE, channels),
        (by_image, _TILE * by_row, _TILE * by_column, by_row, by_column, 1),
    )
    cut = _room.take("one", *cut.shape).copy_(cut)
    return _on_tiles(_transforms().inputs, cut.view(-1, _POINTS, channels), "two")


def _on_tiles(transform: Tensor, tiles: Tensor, name: str) -> Tensor:
    """The same matrix times each of [tiles, 36, C], in some memory."""
    made = _room.take(name, len(tiles), len(transform), tiles.shape[2])
    return torch.bmm(transform.expand(len(tiles), -1, -1), tiles, out=made)


def _kernels(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """G g Gᵀ of all kernels, [points, C, O], for some of the 36 points after others.

    What is given is written over by the next.
    """
    flat = weight.permute(0, 2, 3, 1).reshape(len(weight), 9, -1)
    made = _room.take("kernels", len(weight), _group(weight), flat.shape[2])
    for first in range(0, _POINTS, made.shape[1]):
        points = slice(first, first + made.shape[1])
        torch.matmul(_transforms().kernel[points], flat, out=made)
        yield points, made.permute(1, 2, 0)


def _group(weight: Tensor) -> int:
    """How many points are transformed together."""
    fit = _KERNELS // (4 * weight[..., 0, 0].numel())
    return max(n for n in (36, 18, 12, 6, 3, 1) if n <= max(1, fit))


class _Room(threading.local):
    """Memory of a thread, by name: what is taken is written over when the name is taken again."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        needed = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < needed:
            self._buffers.pop(name, None)
            with torch.inference_mode(False):  # else only inference could write to it
                self._buffers[name] = torch.empty(needed, dtype=torch.float32, device="cpu")
        return self._buffers[name][:needed].view(*shape)


_room = _Room()
