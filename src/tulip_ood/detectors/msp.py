"""Maximum softmax probability (Hendrycks & Gimpel, ICLR 2017)."""

from typing import ClassVar

from tulip_ood.detectors.logits import LogitDetector

__all__ = ["MSP"]


class MSP(LogitDetector):
    """One minus the largest softmax probability.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "msp"
    score_name: ClassVar[str] = "msp"
