"""Relative Mahalanobis++: of normalised features (Mueller & Hein, ICML 2025)."""

from typing import ClassVar

from tulip_ood.detectors.rmds import RMDS

__all__ = ["RMDSPlus"]


class RMDSPlus(RMDS):
    """RMDS with every feature vector divided by its ℓ2 norm first.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = RMDSPlus(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "rmds++"
    normalise: ClassVar[bool] = True
