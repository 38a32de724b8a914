"""GradNorm: the size of the last layer's gradient (Huang, Geng & Li, NeurIPS 2021)."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.logits import Nothing
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes

__all__ = ["GradNorm", "gradient_norm"]


def gradient_norm(features: Tensor, logits: Tensor) -> Tensor:
    """‖∂L/∂W‖₁ of L = −Σ_c log softmax(z)_c, with z = Wh + b: [N, d], [N, o] → [N].

    ∂L/∂z = o·p − 1 and ∂L/∂W = (∂L/∂z) hᵀ, an outer product: its L1 norm is that of one factor
    times that of the other, and no gradient has to be computed. (The paper's loss is L/o, which
    orders inputs in the same way.)

    Example:
        >>> gradient_norm(torch.tensor([[1.0, -2.0]]), torch.zeros(1, 4))  # uniform: no gradient
        tensor([0.])
    """
    error = logits.shape[-1] * logits.softmax(dim=-1) - 1.0
    return error.abs().sum(dim=-1) * features.abs().sum(dim=-1)


class GradNorm(Detector):
    """Minus the L1 norm of the gradient that uniform targets would give the last layer.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`), and whose
            last linear layer gives them.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.gradnorm import GradNorm
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = GradNorm(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "gradnorm"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        _ = passes.head  # refuses where the logits are not a linear layer's output
        features = passes.need_features().to(torch.float64)
        return -gradient_norm(features, passes.base.to(torch.float64))
