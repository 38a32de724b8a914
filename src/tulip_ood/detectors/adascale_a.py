"""AdaSCALE-A: features are scaled, with a percentile of its own for every input (Regmi, 2025)."""

from typing import ClassVar

from torch import Tensor

from tulip_ood.detectors.adascale import AdaScale
from tulip_ood.network.passes import Passes

__all__ = ["AdaScaleA"]


class AdaScaleA(AdaScale):
    """The energy after features were multiplied by exp(r), r adapted to every input.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`), and whose
            last linear layer gives them.
        **common: `percentiles`, `k1`, `k2`, `lam`, `share` and `epsilon` as for `AdaScale`, and
            what every detector takes.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.adascale_a import AdaScaleA
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(30, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 30), torch.randint(3, (200,))
        >>> detector = AdaScaleA(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "adascale-a"

    def _logits(self, passes: Passes, features: Tensor, ratio: Tensor) -> Tensor:
        return passes.head.logits(features * ratio.exp())
