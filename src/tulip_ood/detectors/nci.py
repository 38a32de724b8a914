"""NCI: how well features lie along the weights of their class (Liu & Qin, CVPR 2025)."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.fdbd import FeatureMean, MeanLearner
from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.mahalanobis import FeatureDetector
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.given import number

__all__ = ["NCI"]

# Features so near to the mean, as a share of its length, may be there but for float32's rounding.
_ROUNDING = 1e-6


class NCI(FeatureDetector):
    """How little the centred features point along the weights of the class that is answered.

    At the end of training, the features of a class gather around the direction of its weights
    (neural collapse), seen from the mean of all features: the score is −(f − μ)·w / ‖f − μ‖, and
    −α ‖f‖₁ beside it, as features of strangers tend to be short. Features that are the mean itself
    have no direction: they count as lying across the weights.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        alpha: α; its right size depends on the network, so that it is 0 unless given or tuned.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = NCI(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "nci"
    state_class: ClassVar[type] = FeatureMean
    search = {"alpha": (0.0, 0.0001, 0.001, 0.01, 0.1)}  # noqa: RUF012 – never changed

    def __init__(self, model: nn.Module | Network, *, alpha: float = 0.0, **common: Any) -> None:
        super().__init__(model, **common)
        alpha = number("alpha", alpha)
        if not 0 <= alpha < float("inf"):
            raise InputError(f"alpha must be finite and not negative, got {alpha:g}")
        self.alpha = alpha

    def _scores_on_device(self) -> bool:
        return True

    def _learner(self) -> Learner:
        return MeanLearner()

    def _of_features(self, state: FeatureMean, features: Tensor, passes: Passes) -> Tensor:
        weight, mean = passes.head.weight.to(features), state.mean.to(features)
        out = features - mean
        along = (out * weight[passes.base.argmax(dim=1)]).sum(dim=1)
        length = out.norm(dim=1)
        there = length <= _ROUNDING * mean.norm()
        aligned = torch.where(there, 0.0, along / torch.where(there, 1.0, length))
        return -aligned - self.alpha * features.abs().sum(dim=1)
