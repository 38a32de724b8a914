"""Relative Mahalanobis distance (Ren et al., ICML workshop UDL 2021)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from tulip_ood.detectors.learning import Moments
from tulip_ood.detectors.mahalanobis import Gaussians
from tulip_ood.detectors.mds import MDS

__all__ = ["RMDS", "Relative"]


@dataclass(frozen=True)
class Relative:
    """What the relative distance has learned.

    Attributes:
        classes: The classes' Gaussians.
        background: One Gaussian of all inputs, whatever their class.

    Example:
        >>> import torch
        >>> one = Gaussians.of(torch.zeros(1, 1), torch.ones(1, 1), n=9, rtol=1e-6)
        >>> Relative(one, one).background.n
        9
    """

    classes: Gaussians
    background: Gaussians


class RMDS(MDS):
    """The Mahalanobis distance to the nearest class, less that to a Gaussian of all inputs.

    What makes every input look far away (directions in which all classes vary) cancels.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = RMDS(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "rmds"
    state_class: ClassVar[type] = Relative

    def _of_moments(self, moments: Moments, rtol: float) -> Relative:
        mean = moments.mean.unsqueeze(0)
        background = Gaussians.of(mean, moments.total, n=moments.n, rtol=rtol)
        return Relative(super()._of_moments(moments, rtol), background)

    def _classes(self, state: Any) -> Gaussians:
        assert isinstance(state, Relative)
        return state.classes

    def _distance(self, state: Any, features: Tensor) -> Tensor:
        assert isinstance(state, Relative)
        return state.classes.distance(features) - state.background.distance(features)
