"""Fast decision-boundary-based detection (Liu & Qin, ICML 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.mahalanobis import FeatureDetector, FeatureLearner
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes

__all__ = ["FDBD", "FeatureMean", "MeanLearner"]

_ROUNDING = 1e-12


@dataclass(frozen=True)
class FeatureMean:
    """What fDBD and NCI have learned.

    Attributes:
        mean: Of all features, [d].
        n: Inputs that it was learned from.

    Example:
        >>> FeatureMean(torch.zeros(3), 10).n
        10
    """

    mean: Tensor
    n: int


class FDBD(FeatureDetector):
    """How near the features lie to the decision boundaries, for how far out they lie.

    The distance to the boundary with class c is (f_max − f_c) / ‖w_max − w_c‖; the sum over all
    classes is divided by the features' distance from the data's mean, or by their norm. Two
    classes with the same weights have no boundary and do not count; an input for which the
    divisor is 0 counts as lying on the boundaries.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        distance_as_normalizer: Divide by the distance from the mean (the paper); otherwise by the
            norm of the features.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = FDBD(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "fdbd"
    state_class: ClassVar[type] = FeatureMean
    search = {"distance_as_normalizer": (True, False)}  # noqa: RUF012 – never changed

    def __init__(
        self, model: nn.Module | Network, *, distance_as_normalizer: bool = True, **common: Any
    ) -> None:
        super().__init__(model, **common)
        self.distance_as_normalizer = distance_as_normalizer

    def _learner(self) -> Learner:
        return MeanLearner()

    def _scores_on_device(self) -> bool:
        return True

    def _of_features(self, state: FeatureMean, features: Tensor, passes: Passes) -> Tensor:
        logits = passes.base.to(features)
        highest, answers = logits.max(dim=1)
        apart = _apart(passes.head.weight.to(features), answers)
        gaps = highest.unsqueeze(1) - logits
        there = apart > 0
        to_boundaries = torch.where(there, gaps / torch.where(there, apart, 1.0), 0.0).sum(dim=1)
        out = features - state.mean.to(features) if self.distance_as_normalizer else features
        normalizer = out.norm(dim=1)
        away = normalizer > 0
        return torch.where(away, -to_boundaries / torch.where(away, normalizer, 1.0), 0.0)


def _apart(weight: Tensor, answers: Tensor) -> Tensor:
    """‖w_a − w_c‖ of the answers a and all classes c, [N, o], in float64."""
    squares, own = weight.square().sum(dim=1), weight[answers]
    together = squares[answers].unsqueeze(1) + squares
    squared = together - 2.0 * (own @ weight.T)
    # Rounding moves the same weights a little apart.
    return torch.where(squared > _ROUNDING * together, squared, 0.0).sqrt()


class MeanLearner(FeatureLearner):
    """The mean of all features.

    Example:
        >>> MeanLearner().finish()
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is nothing to learn from: no input has finite features
    """

    def __init__(self) -> None:
        super().__init__()
        self._total: Tensor | float = 0.0

    def _add(self, features: Tensor, passes: Passes) -> None:
        self._total = self._total + features.sum(dim=0)

    def _finish(self) -> FeatureMean:
        assert isinstance(self._total, Tensor)
        return FeatureMean(self._total / self.n, self.n)
