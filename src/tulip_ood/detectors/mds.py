"""Mahalanobis distance to class means (Lee et al., NeurIPS 2018)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tulip_ood.detectors.learning import Learner, Moments
from tulip_ood.detectors.mahalanobis import (
    FeatureDetector,
    Gaussians,
    MomentsLearner,
    unit,
)
from tulip_ood.detectors.steadiness import look_at_batches
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.wording import counted

__all__ = ["MDS"]


class MDS(FeatureDetector):
    """The squared Mahalanobis distance of penultimate features to the nearest class mean.

    All classes share one covariance, taken about the class means. Classes without any input in
    the data are left out. As OpenOOD runs it: one layer, no input noise.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = MDS(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "mds"
    state_class: ClassVar[type] = Gaussians
    normalise: ClassVar[bool] = False

    def _learner(self) -> Learner:
        return MomentsLearner(self._of_moments, normalise=self.normalise)

    def _of_moments(self, moments: Moments, rtol: float) -> Any:
        """What is learned, from the moments of the features."""
        means = moments.class_means[moments.seen]
        return Gaussians.of(means, moments.within, n=moments.n, rtol=rtol)

    def _classes(self, state: Any) -> Gaussians:
        """The classes' Gaussians in what was learned."""
        assert isinstance(state, Gaussians)
        return state

    def _of_features(self, state: Any, features: Tensor, passes: Passes) -> Tensor:
        return self._distance(state, unit(features) if self.normalise else features)

    def _distance(self, state: Any, features: Tensor) -> Tensor:
        return self._classes(state).distance(features)

    def _report_lines(self) -> list[str]:
        classes = self._classes(self._state)
        d = len(classes.centre)
        return [
            f"{len(classes.means)} class means and a covariance of rank {classes.rank} in {d} "
            f"dimensions, learned from {classes.n} inputs"
        ]

    def _finish(self, passes: Passes, rows: Rows | None, *more: Any) -> None:
        narrow = passes.base.dtype == torch.float32  # what float64 rounds does not show
        super()._finish(passes, rows, *more)
        if rows is not None and narrow:
            because = (
                "features hardly vary in some direction, in which distances are long. "
                "Learn from more inputs (train=…)"
            )
            self._findings += look_at_batches(self, rows, because)

    def _judge(self, passes: Passes, taught: Sequence[Any]) -> None:
        super()._judge(passes, taught)
        unseen = passes.base.shape[-1] - len(self._classes(self._state).means)
        if unseen and self._facts["track"] == "train":
            self._find(
                "classes-left-out",
                f"no mean for {counted(unseen, 'class')} without an input in the training data: "
                f"inputs of such a class will look far away from everything",
            )
