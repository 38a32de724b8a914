"""Noise with the spectrum of natural images."""

import torch
from torch import Tensor

from tulip_ood.numerics.random import normal, uniform

__all__ = ["spectrum_noise"]


def spectrum_noise(x: Tensor, low: Tensor, high: Tensor, seed: int) -> Tensor:
    """Noise whose amplitude falls as 1/f^α, α ~ U(.5, 2.5), in the image's colours.

    Each channel has the mean and deviation that it has in the image.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 3, 8, 8)
        >>> y = spectrum_noise(x, x.amin(), x.amax(), seed=0)
        >>> torch.allclose(y.mean((2, 3)), x.mean((2, 3)), atol=1e-5)
        True
    """
    n, _, height, width = x.shape
    alpha = 0.5 + 2.0 * uniform((n, 1, 1, 1), seed=seed, name="spectrum_noise/alpha")
    vertical = torch.fft.fftfreq(height, dtype=torch.float32).unsqueeze(1)
    horizontal = torch.fft.rfftfreq(width, dtype=torch.float32).unsqueeze(0)
    frequency = (vertical.square() + horizontal.square()).sqrt()
    frequency[0, 0] = 1.0
    white = torch.fft.rfft2(normal(x.shape, seed=seed, name="spectrum_noise"))
    coloured = torch.fft.irfft2(white * frequency.pow(-alpha), s=(height, width))
    coloured = coloured - coloured.mean(dim=(2, 3), keepdim=True)
    coloured = coloured / coloured.std(dim=(2, 3), keepdim=True).clamp_min(1e-12)
    mean, deviation = x.mean(dim=(2, 3), keepdim=True), x.std(dim=(2, 3), keepdim=True)
    result: Tensor = mean + deviation * coloured.to(x.dtype)
    return result
