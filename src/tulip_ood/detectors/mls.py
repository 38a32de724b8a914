"""Maximum logit (Hendrycks et al., ICML 2022)."""

from typing import ClassVar

from tulip_ood.detectors.logits import LogitDetector

__all__ = ["MaxLogit"]


class MaxLogit(LogitDetector):
    """Minus the largest logit.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MaxLogit(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "mls"
    score_name: ClassVar[str] = "mls"
