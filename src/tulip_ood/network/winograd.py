"""3 × 3 convolutions with a quarter of the multiplications: Winograd's minimal filtering, F(4 × 4).

A direct convolution already runs as fast as a CPU multiplies, so what makes a pass cheaper is
multiplying less. The product of two polynomials of degrees 3 and 2 is known from its values at six
points; read backwards (transposed), that gives four outputs of a filter of three for six
multiplications instead of twelve, and in two dimensions 4 × 4 outputs for 36 instead of 144:

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        g: 3 × 3, d: a tile of 6 × 6, summed over channels

The sum over channels is 36 matrix products. Everything else is small beside them where there are
many channels and few positions; which layers these are is a matter of shapes alone (`pays`), so
that the same input gives the same output. Kernels are transformed in every pass: held, they would
take four times the memory of all perturbed copies.
"""

import math
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
_LARGEST = 32  # height and width: tiles are cut out by a product with the whole of either
_AT_ONCE = 64  # positions of images whose tiles are cut out by one product
_FULL = 12  # outputs that the tiles give on average, of 16
_TILES = 64  # in a batch: with fewer, the transform of the kernels is not worth it
_SCRATCH = 8 << 20  # bytes, for what is between the products: twice
_KERNELS = 20 << 20  # bytes, for transformed kernels


class _Transforms(NamedTuple):
    kernel: Tensor  # [36, 9]: G ⊗ G
    inputs: Tensor  # [6, 6]: Bᵀ, float64
    outputs: Tensor  # [4, 6]: Aᵀ


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
    n, _, *size = x.shape
    height, width = (one + 2 * padding - 2 for one in size)
    rows, columns = _tiles(height), _tiles(width)
    most = max(weight.shape[:2]) * rows * columns * _POINTS  # numbers in between, for one image
    kept = list(_kernels(weight)) if _group(weight) == _POINTS else None
    fits = _SCRATCH if kept else 2 * _SCRATCH  # every part has to transform the kernels again
    step = -(-n // -(-4 * n * most // fits))  # parts of about the same size
    room = x.new_empty(step * most), x.new_empty(step * most)
    whole = x.new_empty(n, rows, _TILE, columns, _TILE, len(weight))
    images = x.permute(0, 2, 3, 1).contiguous()
    for first in range(0, n, step):
        part = slice(first, first + step)
        tiles = _in_tiles(images[part], padding, room)
        products = _taken(room[1], _POINTS, tiles.shape[1], len(weight))
        for points, kernel in kept or _kernels(weight):
            torch.bmm(tiles[points], kernel, out=products[points])
        made = _outputs(products, room).view(_TILE, _TILE, -1, rows, columns, len(weight))
        made = made.permute(2, 3, 0, 4, 1, 5)
        torch.add(made, 0.0 if bias is None else bias, out=whole[part])
    image = whole.view(n, rows * _TILE, columns * _TILE, -1)
    out = image[:, :height, :width].contiguous().permute(0, 3, 1, 2)
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
        return _Transforms(
            torch.kron(kernel, kernel).float(),
            torch.linalg.inv(whole).T,
            inputs.T.float().contiguous(),
        )


@lru_cache(maxsize=64)
def _along(size: int, padding: int) -> Tensor:
    """Bᵀ for every tile in one direction, padding included: [tiles, 6, size]."""
    tiles = _tiles(size + 2 * padding - 2)
    with torch.inference_mode(False):
        every = torch.zeros(tiles, _SIDE, size + 2 * _SIDE, dtype=torch.float64, device="cpu")
        for i in range(tiles):
            begins = _SIDE + i * _TILE - padding
            every[i, :, begins : begins + _SIDE] = _transforms().inputs
        return every[:, :, _SIDE : _SIDE + size].float()


@lru_cache(maxsize=64)
def _both(height: int, width: int, padding: int) -> Tensor:
    """Bᵀ d B for every tile d of an image: [tiles · 36, H · W]."""
    with torch.inference_mode(False):
        ways = _along(height, padding).double(), _along(width, padding).double()
        return torch.einsum("aip,bjq->abijpq", *ways).reshape(-1, height * width).float()


def _in_tiles(images: Tensor, padding: int, room: tuple[Tensor, Tensor]) -> Tensor:
    """Bᵀ d B of every tile d of some [n, H, W, C], in the first room: [36, n · tiles, C].

    In small images both directions at once: every step less is one in which no core waits for
    another.
    """
    n, height, width, channels = images.shape
    if height * width <= _AT_ONCE:
        cutting = _both(height, width, padding)
        cut = _taken(room[0], n, len(cutting), channels)
        torch.bmm(cutting.expand(n, -1, -1), images.view(n, -1, channels), out=cut)
        return cut.view(-1, _POINTS, channels).transpose(0, 1)
    down, across = (_along(size, padding).flatten(0, 1) for size in (height, width))
    cut = _taken(room[0], n, len(down), width * channels)
    torch.bmm(down.expand(n, -1, -1), images.view(n, height, -1), out=cut)
    cut = cut.view(-1, width, channels)
    tiles = _taken(room[1], len(cut), len(across), channels)
    torch.bmm(across.expand(len(cut), -1, -1), cut, out=tiles)
    tiles = tiles.view(n, -1, _SIDE, len(across) // _SIDE, _SIDE, channels)
    tiles = tiles.permute(2, 4, 0, 1, 3, 5)
    return _taken(room[0], *tiles.shape).copy_(tiles).view(_POINTS, -1, channels)


def _outputs(products: Tensor, room: tuple[Tensor, Tensor]) -> Tensor:
    """Aᵀ M A of every tile M: [4, 4, …]."""
    back, each = _transforms().outputs, products[0].numel()
    half = _taken(room[0], _TILE, _SIDE * each)
    torch.mm(back, products.view(_SIDE, -1), out=half)
    made = _taken(room[1], _TILE, _TILE, each)
    return torch.bmm(back.expand(_TILE, -1, -1), half.view(_TILE, _SIDE, each), out=made)


def _kernels(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """G g Gᵀ of all kernels, [points, C, O], for some of the 36 points after others.

    What is given is written over by the next.
    """
    flat = weight.permute(0, 2, 3, 1).reshape(len(weight), 9, -1)
    made = weight.new_empty(len(weight), _group(weight), flat.shape[2])
    for first in range(0, _POINTS, made.shape[1]):
        points = slice(first, first + made.shape[1])
        torch.matmul(_transforms().kernel[points], flat, out=made)
        yield points, made.permute(1, 2, 0)


def _group(weight: Tensor) -> int:
    """How many points are transformed together."""
    fit = _KERNELS // (4 * weight[..., 0, 0].numel())
    return max(n for n in (36, 18, 12, 6, 3, 1) if n <= max(1, fit))


def _taken(buffer: Tensor, *shape: int) -> Tensor:
    """The beginning of a buffer, in some shape: memory that is new costs as much as a product."""
    return buffer[: math.prod(shape)].view(*shape)
