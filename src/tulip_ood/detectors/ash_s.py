"""ASH-S: activation shaping, scaled (Djurisic et al., ICLR 2023)."""

from typing import ClassVar

from tulip_ood.detectors.ebo import Energy

__all__ = ["AshS"]


class AshS(Energy):
    """The energy after pruning small features and scaling up the rest.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        percentile: Of each input's features that are removed; by default 90.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.AshS(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "ash-s"
    family: ClassVar[str | None] = "ash-s"
