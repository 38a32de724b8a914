"""Generalised entropy (Liu et al., CVPR 2023)."""

from typing import Any, ClassVar

from torch import Tensor, nn

from tulip_ood.detectors.logits import LogitDetector
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.numerics import scores

__all__ = ["GEN"]


class GEN(LogitDetector):
    """Σ p^γ (1−p)^γ over the largest probabilities.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        gamma: γ.
        top: How many of the largest probabilities count.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.GEN(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "gen"
    score_name: ClassVar[str] = "gen"
    search = {  # noqa: RUF012 – never changed
        "gamma": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
        "top": (10, 50, 100, 200, 500, 1000),
    }

    def __init__(
        self, model: nn.Module | Network, *, gamma: float = 0.1, top: int = 100, **common: Any
    ) -> None:
        super().__init__(model, **common)
        if not 0 < gamma < float("inf") or top < 1:
            raise InputError(f"gen needs gamma > 0 and top ≥ 1, got {gamma} and {top}")
        self.gamma, self.top = gamma, top

    def _of_logits(self, logits: Tensor) -> Tensor:
        return scores.gen(self.task.predict(logits.unsqueeze(0)), self.gamma, self.top)
