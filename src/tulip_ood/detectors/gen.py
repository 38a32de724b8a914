"""Generalised entropy (Liu et al., CVPR 2023)."""

from typing import ClassVar

from tulip_ood.detectors.logits import LogitDetector

__all__ = ["GEN"]


class GEN(LogitDetector):
    """Σ p^γ (1−p)^γ over the 100 largest probabilities, γ = 0.1.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.GEN(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "gen"
    score_name: ClassVar[str] = "gen"
