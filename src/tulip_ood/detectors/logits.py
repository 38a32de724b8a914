"""Detectors that look at the logits of one pass, as they are or over shaped features."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.shaping import SHAPINGS, Shaping, make_shaping
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.default_device import on_the_cpu

__all__ = ["LogitDetector", "Nothing"]


@dataclass(frozen=True)
class Nothing:
    """What a detector has learned that learns nothing but its shaping, if it has one.

    Attributes:
        shaping: What is done to penultimate features, or None.

    Example:
        >>> Nothing().shaping is None
        True
    """

    shaping: Shaping | None = None


class LogitDetector(Detector):
    """A score of the network's own logits; works before `fit` where there is no shaping.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        shaping: What is done to penultimate features first: "react", "ash-b", "ash-s", "ash-p" or
            "scale", with a percentile if it is not the published one ("scale:65").
        percentile: The same percentile, as a number.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> tulip_ood.detectors.Entropy(torch.nn.Linear(2, 2)).score(torch.zeros(1, 2)).shape
        torch.Size([1])
    """

    score_name: ClassVar[str]
    family: ClassVar[str | None] = None  # the shaping that belongs to a method
    state_class: ClassVar[type] = Nothing

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        shaping: str | None = None,
        percentile: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        self.task.check_score(self.score_name)
        spec = shaping or self.family
        self.shaping = None if spec is None else make_shaping(spec).name
        if spec is not None:
            self.percentile = make_shaping(spec).percentile if percentile is None else percentile
            make_shaping(f"{self.shaping}:{self.percentile}")  # refuses what is no percentile
            self.search = {**self.search, "percentile": SHAPINGS[make_shaping(spec).name].searched}

    def _learn(self, passes: Passes) -> Nothing:
        if self.shaping is None:
            return Nothing()
        shaping = make_shaping(f"{self.shaping}:{self.percentile:g}")
        return Nothing(shaping.learned(passes.need_features()))

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        if state.shaping is not None:
            passes = passes.base_alone().reshaped(state.shaping)
        return self._of_logits(passes.base.to(torch.float64))

    def _of_logits(self, logits: Tensor) -> Tensor:
        return self.task.score(self.score_name, logits.unsqueeze(0))

    @on_the_cpu()
    def score(self, x: Inputs | Passes) -> Tensor:
        """How unsure: float64 [N], high = unsure; +inf where there is no score (NaN inputs).

        Args:
            x: Inputs as the model takes them, any number of them, or a `Passes` record.
        """
        if self._state is None and self.shaping is None:
            with self._lock:
                self.engine.take_model()
                self._state = Nothing()
        return super().score(x)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        if self.family is None:
            config["shaping"] = self.shaping
        return config, tensors
