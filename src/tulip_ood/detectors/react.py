"""ReAct: rectified activations (Sun, Guo & Li, NeurIPS 2021)."""

from typing import ClassVar

from tulip_ood.detectors.ebo import Energy
from tulip_ood.numerics.tasks import Classification

__all__ = ["React"]


class React(Energy):
    """The energy after clipping penultimate features at a percentile of the ID data's.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        percentile: Of all features of the validation data; by default 90.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.React(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "react"
    family: ClassVar[str | None] = "react"

    def _scores_on_device(self) -> bool:
        return isinstance(self.task, Classification)
