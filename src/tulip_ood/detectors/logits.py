"""Detectors that look at the logits of one pass and learn nothing but a threshold."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.passes import Passes

__all__ = ["LogitDetector"]


@dataclass(frozen=True)
class Nothing:
    """What a detector has learned that learns nothing.

    Example:
        >>> Nothing()
        Nothing()
    """


class LogitDetector(Detector):
    """A score of the network's own logits; works before `fit`, which only sets the threshold.

    Example:
        >>> import torch, tulip_ood
        >>> tulip_ood.detectors.Entropy(torch.nn.Linear(2, 2)).score(torch.zeros(1, 2)).shape
        torch.Size([1])
    """

    score_name: ClassVar[str]
    state_class: ClassVar[type] = Nothing

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task.check_score(self.score_name)

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        return self.task.score(self.score_name, passes.base.to(torch.float64).unsqueeze(0))

    def score(self, x: Inputs | Passes) -> Tensor:
        """How unsure: float64 [N], high = unsure; +inf where there is no score (NaN inputs).

        Args:
            x: Inputs as the model takes them, any number of them, or a `Passes` record.
        """
        if self._state is None:
            self._begin()
            self._state = Nothing()
        return super().score(x)
