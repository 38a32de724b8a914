"""Nearest-neighbour guidance (Park, Jung & Teoh, ICCV 2023)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.knn import near_rows
from tulip_ood.detectors.learning import Learner, RowSample
from tulip_ood.detectors.mahalanobis import FeatureDetector, FeatureLearner, unit
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes

__all__ = ["Guides", "NNGuide"]

# OpenOOD keeps whole batches of its loader: never a handful, whatever α says. 1 % of CIFAR's
# training set is as many.
LEAST_ROWS = 500


@dataclass(frozen=True)
class Guides:
    """What the guidance has learned.

    Attributes:
        rows: Normalised features times their energies, [N, d], float32.
        n: Inputs that they are a sample of.

    Example:
        >>> Guides(torch.zeros(5, 3), 500).n
        500
    """

    rows: Tensor
    n: int


class NNGuide(FeatureDetector):
    """The energy times the mean of the K largest products with a sample of the data, negated.

    A product is the cosine of the angle between features, times the other input's energy
    logsumexp(f): high where the network is sure of the input and of those that resemble it.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        k: K; all of the sample where it is smaller.
        alpha: The share of the data that is kept; at least 500 inputs are, if there are so many.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = NNGuide(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "nnguide"
    state_class: ClassVar[type] = Guides

    def __init__(
        self, model: nn.Module | Network, *, k: int = 100, alpha: float = 0.01, **common: Any
    ) -> None:
        super().__init__(model, **common)
        if k < 1 or not 0 < alpha <= 1:
            raise InputError(f"k must be at least 1 and alpha between 0 and 1, got {k} and {alpha}")
        self.k, self.alpha = k, alpha

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return {**config, "k": self.k, "alpha": self.alpha}, tensors

    def _reads_scale(self) -> bool:
        return True  # of energies

    def _learner(self) -> Learner:
        return _GuideLearner(self.alpha, self.seed)

    def _of_features(self, state: Guides, features: Tensor, passes: Passes) -> Tensor:
        k = min(self.k, len(state.rows))
        queries = unit(features)
        guidance = torch.empty(len(queries), dtype=torch.float64)
        for where, rows in near_rows(state.rows, queries, k):
            products = (rows * queries[where].unsqueeze(1)).sum(dim=2)
            guidance[where] = products.topk(k, dim=1).values.mean(dim=1)
        return -guidance * _energy(passes)

    def _report_lines(self) -> list[str]:
        state: Guides = self._state
        k = min(self.k, len(state.rows))
        return [f"guided by {k} of {len(state.rows)} inputs, a sample of {state.n}"]


def _energy(passes: Passes) -> Tensor:
    return passes.base.to(torch.float64).logsumexp(dim=-1)


class _GuideLearner(FeatureLearner):
    def __init__(self, alpha: float, seed: int) -> None:
        super().__init__()
        self._sample = RowSample(LEAST_ROWS, share=alpha, seed=seed)

    def _add(self, features: Tensor, passes: Passes) -> None:
        guides = unit(features) * _energy(passes).unsqueeze(1)
        self._sample.add(guides.to(torch.float32))

    def _finish(self) -> Guides:
        return Guides(torch.cat(self._sample.parts()), self.n)
