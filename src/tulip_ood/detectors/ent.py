"""Entropy of the softmax probabilities."""

from typing import ClassVar

from tulip_ood.detectors.logits import LogitDetector

__all__ = ["Entropy"]


class Entropy(LogitDetector):
    """The Shannon entropy of the network's own prediction: TULiP with J = 0.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.Entropy(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "ent"
    score_name: ClassVar[str] = "ent"
