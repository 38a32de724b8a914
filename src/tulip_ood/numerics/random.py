"""A counter-based random generator that is the same on every device and in every release.

`torch.randn` promises no equal streams between devices or versions. Here every number is a pure
function of (seed, name, index, position): Philox4x32-10 (Salmon et al., SC 2011) in integer
operations, Box–Muller in float64 rounded to float32. Nothing touches the process's random state.
"""

import hashlib
import math
import operator

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["check_seed", "integers", "normal", "permutation", "philox", "uniform"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# Blocks of four words made at once: small enough for a CPU's cache, large enough for a GPU.
_BLOCKS_CPU, _BLOCKS_GPU = 1 << 15, 1 << 22


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: four 32-bit words (held in int64) for every counter.

    Args:
        counter: Four int64 tensors of one shape, each value in [0, 2^32).
        key: Two 32-bit integers.

    Returns:
        Four int64 tensors of that shape, each value in [0, 2^32).

    Example:
        >>> import torch
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> [hex(int(word)) for word in philox((zero, zero, zero, zero), (0, 0))]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # An int64 product wraps, but its 64 bits are those of the unsigned product.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> 32 & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            (p0 >> 32 & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def check_seed(seed: int) -> int:
    """The seed, if it is a whole number from 0 to 2^63 − 1; refuses others.

    Example:
        >>> check_seed(-1)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: a seed must be a whole number from 0 to 2**63 - 1, got -1
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63 or isinstance(seed, bool):
        raise InputError(f"a seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")
    return number


def _key(seed: int, name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{check_seed(seed)}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _words(first: int, last: int, index: int, key: tuple[int, int], device: torch.device) -> Tensor:
    """The words of blocks first…last−1, shape [blocks, 4]."""
    block = torch.arange(first, last, dtype=torch.int64, device=device)
    zero = torch.zeros_like(block)
    return torch.stack(philox((block & _MASK, block >> 32, zero + index, zero), key), dim=-1)


def _draw(
    n: int, *, seed: int, name: str, index: int, kind: str, device: torch.device, first: int = 0
) -> Tensor:
    """n numbers of a stream, from the first, made in pieces so that memory stays small."""
    if min(n, first) < 0:
        raise InputError(f"n must not be negative, got {min(n, first)}")
    # Devices without float64 (MPS) get numbers made on the CPU: the stream must not change.
    where = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    dtype = torch.int64 if kind == "words" else torch.float32
    begin, skipped = divmod(first, 4)
    blocks = -(-(skipped + n) // 4)
    out = torch.empty((blocks, 4), dtype=dtype, device=where)
    step = _BLOCKS_CPU if where.type == "cpu" else _BLOCKS_GPU
    key = _key(seed, name)
    for low in range(0, blocks, step):
        high = min(blocks, low + step)
        words = _words(begin + low, begin + high, index, key, where)
        if kind == "words":
            out[low:high] = words
        elif kind == "uniform":
            out[low:high] = (words >> 8).to(torch.float32) * 2.0**-24
        else:
            unit = words.to(torch.float64).add_(0.5).mul_(2.0**-32)
            radius = unit[:, :2].log().mul_(-2.0).sqrt_()
            angle = unit[:, 2:] * (2.0 * math.pi)
            out[low:high, :2] = radius * angle.cos()
            out[low:high, 2:] = radius * angle.sin()
    return out.reshape(-1)[skipped : skipped + n].to(device)


def normal(
    shape: tuple[int, ...] | torch.Size,
    *,
    seed: int,
    name: str,
    index: int = 0,
    device: torch.device | str = "cpu",
    first: int = 0,
) -> Tensor:
    """Standard normal numbers, float32, the same on every device.

    Args:
        shape: The shape of the result.
        seed: The user's seed.
        name: What the numbers are for (a canonical parameter name, a kind of shift).
        index: Which draw of that name (the number of the antithetic pair).
        device: Where the result lies.
        first: How many numbers of the stream come before them.

    Example:
        >>> normal((3,), seed=0, name="fc.weight")
        tensor([-0.5657, -1.2657, -0.2803])
        >>> normal((2,), seed=0, name="fc.weight", first=1)
        tensor([-1.2657, -0.2803])
        >>> bool((normal((5,), seed=0, name="w")[:3] == normal((3,), seed=0, name="w")).all())
        True
    """
    n = math.prod(shape)
    drawn = _draw(
        n,
        seed=seed,
        name=name,
        index=index,
        kind="normal",
        device=torch.device(device),
        first=first,
    )
    return drawn.reshape(shape)


def uniform(
    shape: tuple[int, ...] | torch.Size,
    *,
    seed: int,
    name: str,
    index: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Uniform numbers in [0, 1), float32 with 24 random bits.

    Example:
        >>> bool((uniform((1000,), seed=0, name="u") < 1).all())
        True
    """
    n = math.prod(shape)
    drawn = _draw(n, seed=seed, name=name, index=index, kind="uniform", device=torch.device(device))
    return drawn.reshape(shape)


def integers(
    shape: tuple[int, ...] | torch.Size, high: int, *, seed: int, name: str, index: int = 0
) -> Tensor:
    """Integers in [0, high), on the CPU; the bias is below high / 2^32.

    Example:
        >>> integers((4,), 10, seed=0, name="patch").tolist()
        [7, 1, 2, 9]
    """
    words = _draw(
        math.prod(shape),
        seed=seed,
        name=name,
        index=index,
        kind="words",
        device=torch.device("cpu"),
    )
    return (words * high >> 32).reshape(shape)


def permutation(n: int, *, seed: int, name: str, index: int = 0) -> Tensor:
    """A permutation of 0…n−1, on the CPU.

    Example:
        >>> sorted(permutation(5, seed=0, name="rows").tolist())
        [0, 1, 2, 3, 4]
    """
    words = _draw(n, seed=seed, name=name, index=index, kind="words", device=torch.device("cpu"))
    return torch.argsort(words, stable=True)
