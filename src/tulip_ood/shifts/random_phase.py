"""The image's spectrum with random phase."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import normal

__all__ = ["random_phase"]


def random_phase(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """The image's amplitude spectrum, every phase drawn anew: its texture without its edges.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 1, 8, 8)
        >>> y = random_phase(x, x.amin(), x.amax(), seed=0)
        >>> torch.allclose(torch.fft.rfft2(y).abs(), torch.fft.rfft2(x).abs(), atol=1e-4)
        True
    """
    spectrum = torch.fft.rfft2(x.to(torch.float32))
    # The spectrum of a real image of noise has the symmetry that a real result needs.
    drawn = torch.fft.rfft2(normal(x.shape, seed=seed, name="random_phase"))
    phase = drawn / drawn.abs().clamp_min(1e-12)
    shuffled = spectrum.abs() * phase
    shuffled[..., 0, 0] = spectrum[..., 0, 0]  # the mean stays
    image: Tensor = torch.fft.irfft2(shuffled, s=x.shape[-2:])
    return image.to(x.dtype)
