"""What the distance detectors share: features in blocks, Gaussians learned in a stream.

The Mahalanobis distance to class Gaussians with one covariance is that of Lee et al. (NeurIPS
2018). Everything is learned block by block, so that memory does not grow with the training data.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.findings import look_at_head
from tulip_ood.detectors.learning import Learner, Moments
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.blocks import row_blocks

__all__ = [
    "FeatureDetector",
    "FeatureLearner",
    "Gaussians",
    "MomentsLearner",
    "unit",
]


def unit(features: Tensor) -> Tensor:
    """Features [N, d] divided by their ℓ2 norm; a row of zeros stays one.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    norms = features.norm(dim=1, keepdim=True)
    return features / torch.where(norms > 0, norms, 1.0)


# ------------------------------------------------------------- rows, block by block


class FeatureDetector(Detector):
    """A detector that looks at penultimate features; a method writes `_of_features`.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        **common: As for every detector.

    Example:
        >>> from tulip_ood.detectors.mds import MDS
        >>> MDS(torch.nn.Linear(4, 1), task="regression")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: mds is for task 'classification', not 'regression'
    """

    learns_from_data: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        if self.task.name not in self.tasks:
            known = ", ".join(repr(name) for name in self.tasks)
            raise InputError(f"{self.name} is for task {known}, not {self.task.name!r}")

    def _knows_strangers(self) -> bool:
        return True

    def _judge(self, passes: Passes, taught: Sequence[Any]) -> None:
        super()._judge(passes, taught)
        if self.network.probed:
            self._findings += look_at_head(self.network.known_probe)

    @abstractmethod
    def _of_features(self, state: Any, features: Tensor, passes: Passes) -> Tensor:
        """Scores of some inputs: their features [N, d] in float64, and their passes."""

    def _score(self, state: Any, passes: Passes) -> Tensor:
        whole = passes.need_features()
        scores = torch.full((len(passes),), math.inf, dtype=torch.float64, device=whole.device)
        for rows in row_blocks(len(passes), whole.shape[1] + passes.base.shape[-1]):
            features = whole[rows].to(torch.float64)
            known = features.isfinite().all(dim=1)
            # Rows without a score are scored as zeros, so that they cannot disturb the others.
            features = torch.where(known.unsqueeze(1), features, 0.0)
            some = passes if len(features) == len(passes) else passes.take(rows)
            found = self._of_features(state, features, some)
            scores[rows] = torch.where(known & ~found.isnan(), found, math.inf)
        return scores


class FeatureLearner(Learner):
    """Learns from features, a bounded number of rows at a time.

    Rows whose features are not finite are left out.

    Example:
        >>> class Sum(FeatureLearner):
        ...     total = 0.0
        ...     def _add(self, features, passes):
        ...         self.total += float(features.sum())
        ...     def _finish(self):
        ...         return self.total
        >>> Sum().finish()
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is nothing to learn from: no input has finite features
    """

    def __init__(self) -> None:
        self.n = 0

    @abstractmethod
    def _add(self, features: Tensor, passes: Passes) -> None:
        """Take in features [N, d], float64 and finite, with their passes."""

    @abstractmethod
    def _finish(self) -> Any:
        """What was learned; called only if there was anything to learn from."""

    def add(self, passes: Passes) -> None:
        """Take some inputs in."""
        for block in _finite_blocks(passes):
            self.n += len(block)
            self._add(block.need_features().to(torch.float64), block)

    def finish(self) -> Any:
        """What was learned."""
        if not self.n:
            raise InputError("there is nothing to learn from: no input has finite features")
        return self._finish()


def _finite_blocks(passes: Passes) -> Iterator[Passes]:
    features = passes.need_features()
    for rows in row_blocks(len(passes), features.shape[1]):
        block = passes.take(rows)
        known = features[rows].isfinite().all(dim=1)
        if not bool(known.all()):
            block = block.take(known.nonzero().squeeze(1))
        if len(block):
            yield block


# ----------------------------------------------------------------------- Gaussians


@dataclass(frozen=True)
class Gaussians:
    """Gaussians with different means and one covariance.

    Attributes:
        centre: The mean of the means, [d]; everything else is about it, to save digits.
        means: One for each Gaussian, less the centre, [G, d].
        precision: The (pseudo-)inverse of the covariance, [d, d].
        offsets: mᵀ · precision · m of each mean, [G].
        rank: Of the covariance.
        n: Inputs that it was learned from.

    Example:
        >>> covariance = torch.tensor([[4.0]], dtype=torch.float64)
        >>> means = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
        >>> one = Gaussians.of(means, covariance, n=9, rtol=1e-6)
        >>> one.distance(torch.tensor([[2.0], [14.0]], dtype=torch.float64)).tolist()
        [1.0, 4.0]
    """

    centre: Tensor
    means: Tensor
    precision: Tensor
    offsets: Tensor
    rank: int
    n: int

    @staticmethod
    def of(means: Tensor, covariance: Tensor, *, n: int, rtol: float) -> "Gaussians":
        """From means [G, d] and a covariance [d, d], float64, that may be singular.

        Args:
            means: [G, d].
            covariance: [d, d].
            n: Inputs that they were learned from.
            rtol: Directions whose variance is below this share of the largest do not count.
        """
        # A variance that is nothing but the rounding of means must not be inverted.
        scale = float(means.square().max()) * torch.finfo(torch.float64).eps
        if not float(covariance.diagonal().max()) > 16 * scale:
            raise InputError(
                f"the penultimate features of these {n} inputs do not vary about their means, so "
                f"no covariance can be learned: give more inputs of each class (train=…)"
            )
        precision = torch.linalg.pinv(covariance, rtol=rtol, hermitian=True)
        centre = means.mean(dim=0)
        means = means - centre
        offsets = ((means @ precision) * means).sum(dim=1)
        # The trace of pinv(C)·C counts the directions that were inverted.
        rank = round(float((precision * covariance).sum()))
        return Gaussians(centre, means, precision, offsets, rank, n)

    def distance(self, features: Tensor) -> Tensor:
        """The squared Mahalanobis distance to the nearest mean, [N], of features [N, d]."""
        moved = features - self.centre
        turned = moved @ self.precision
        own = (turned * moved).sum(dim=1)
        return own + (self.offsets - 2 * turned @ self.means.T).min(dim=1).values


class MomentsLearner(FeatureLearner):
    """Learns class means and covariances in a stream.

    Args:
        finish: What is made of the moments and the smallest variance that counts (as a share of
            the largest).
        normalise: Whether features are divided by their ℓ2 norm first.

    Example:
        >>> MomentsLearner(lambda moments, rtol: moments.mean, normalise=False).n
        0
    """

    def __init__(self, finish: Callable[[Moments, float], Any], *, normalise: bool) -> None:
        super().__init__()
        self._make, self._normalise = finish, normalise
        self._moments: Moments | None = None

    def _add(self, features: Tensor, passes: Passes) -> None:
        if passes.labels is None:
            raise InputError("class means need labels: batches of (inputs, labels)")
        if self._moments is None:
            self._moments = Moments(passes.base.shape[-1])
            # As in OpenOOD: its covariances come from numpy.cov, which is float64 for float32
            # features, and scikit-learn inverts what is above this share of the largest variance.
            precision = torch.finfo(torch.float64).eps
            self._rtol = features.shape[1] * precision
        self._moments.add(unit(features) if self._normalise else features, passes.labels)

    def _finish(self) -> Any:
        assert self._moments is not None
        return self._make(self._moments, self._rtol)
