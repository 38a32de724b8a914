"""SCALE: activation scaling (Xu et al., ICLR 2024)."""

from typing import ClassVar

from tulip_ood.detectors.ebo import Energy

__all__ = ["Scale"]


class Scale(Energy):
    """The energy after scaling all features by exp(sum / sum of the largest).

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        percentile: Of each input's features that do not count as large; by default 85.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.Scale(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "scale"
    family: ClassVar[str | None] = "scale"
