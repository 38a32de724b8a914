"""Energy (Liu et al., NeurIPS 2020)."""

from typing import ClassVar

from tulip_ood.detectors.logits import LogitDetector

__all__ = ["Energy"]


class Energy(LogitDetector):
    """Minus the logsumexp of the logits, at temperature 1.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.Energy(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "ebo"
    score_name: ClassVar[str] = "ebo"
