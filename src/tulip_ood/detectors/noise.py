"""Plain noise averaging: TULiP without the bound. The row that shows what the bound adds."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.envelope_fit import score_stretched
from tulip_ood.detectors.logits import Nothing
from tulip_ood.errors import InputError
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation

__all__ = ["NoiseAveraging"]


class NoiseAveraging(Detector):
    """The score of the prediction averaged over weight noise, with a constant stretch γ.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        score: "ent", "msp", "gen", "mls" or "ebo".
        epsilon: The size of the noise.
        gamma: γ, the same for every input.
        n_samples: M, the number of noisy passes.
        antithetic: Draw noise in pairs (v, −v).
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.NoiseAveraging(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "noise"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        score: str = "ent",
        epsilon: float = 0.005,
        gamma: float = 1.0,
        n_samples: int = 10,
        antithetic: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        self.score_name = self.task.check_score(score)
        if score == "bound" or n_samples < 1:
            raise InputError("noise averaging has no bound, and needs n_samples of at least 1")
        if not 0 <= gamma < float("inf"):
            raise InputError(f"gamma must be finite and not negative, got {gamma}")
        self.epsilon, self.gamma = epsilon, gamma
        self.n_samples, self.antithetic = n_samples, antithetic

    def _settings(self) -> PassSettings:
        return PassSettings(
            self.epsilon,
            n_samples=self.n_samples,
            antithetic=self.antithetic,
            seed=self.seed,
            drift=False,
        )

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        scales = {n: 1.0 for n, p in self.network.parameters.items() if p.is_floating_point()}
        return Perturbation(self.network, scales, InitialMean({}, ()), settings)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        names = ("epsilon", "gamma", "n_samples", "antithetic")
        config |= {name: getattr(self, name) for name in names}
        return {**config, "score": self.score_name}, tensors

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        stretch = torch.full(passes.base.shape[:-1], self.gamma, dtype=torch.float64)
        return score_stretched(passes, self.task, self.score_name, stretch)
