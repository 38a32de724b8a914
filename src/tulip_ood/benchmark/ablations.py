"""TULiP with a part taken out: rows that show what each step brings. Not meant for use."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.logits import Nothing
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import random

__all__ = ["ABLATIONS", "InputNoise", "NoisyInputLogits", "NormForDrift"]


class NormForDrift(Tulip):
    """TULiP with D(z) := ‖f(z)‖: how much does the drift pass know beyond the size of the logits?

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 32), ReLU(), Linear(32, 3))
        >>> x = torch.randn(500, 4)
        >>> detector = NormForDrift(model).fit([(x, model(2 * x).argmax(1))], recipe="balanced")
        >>> detector.score(x[:2]).shape
        torch.Size([2])
    """

    name: ClassVar[str] = "tulip-norm"

    def __init__(self, model: nn.Module | Network, *, drift: str = "norm", **more: Any) -> None:
        super().__init__(model, drift=drift, **more)


@dataclass(frozen=True)
class NoisyInputLogits(Measure):
    """Logits of x + σ v_i for M patterns v_i in pairs (v, −v), the same for every input.

    Attributes:
        sigma: σ, in the unit that the network is given.
        n_samples: M.
        seed: Of the patterns.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> NoisyInputLogits(0.1, 6)(network, torch.zeros(2, 4)).shape
        torch.Size([2, 6, 3])
    """

    sigma: float
    n_samples: int = 10
    seed: int = 0

    @property
    def key(self) -> str:
        """All that it depends on."""
        return f"input-noise:sigma={self.sigma:.17g}:M={self.n_samples}:seed={self.seed}"

    @property
    def passes(self) -> int:
        """One for each pattern."""
        return self.n_samples

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """Logits [N, M, o]."""
        for place, x in structures.tensors(inputs):
            if x.is_floating_point():
                noisy = [
                    network.run(structures.replace(inputs, place, self._moved(x, i))).logits
                    for i in range(self.n_samples)
                ]
                return torch.stack(noisy, dim=1)
        raise ModelError("noise-input changes its inputs: they must be real numbers, not tokens")

    def _moved(self, x: Tensor, i: int) -> Tensor:
        pattern = random.normal(
            x.shape[1:], seed=self.seed, name="input-noise", index=i // 2, device=x.device
        )
        return x + (1 - 2 * (i % 2)) * self.sigma * pattern.to(x.dtype)


class InputNoise(Detector):
    """Noise averaging with noise on the inputs instead of the weights, and as many passes.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        score: "ent", "msp", "gen", "mls" or "ebo".
        sigma: σ, in the unit that the network is given.
        n_samples: M, the number of noisy passes.
        **common: As for every detector.

    Example:
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = InputNoise(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "noise-input"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        score: str = "ent",
        sigma: float = 0.05,
        n_samples: int = 10,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        self.score_name = self.task.check_score(score)
        if not 0 < sigma < float("inf") or n_samples < 1 or score == "bound":
            raise InputError(
                f"noise-input needs sigma > 0, n_samples ≥ 1 and a score of outputs; got sigma "
                f"{sigma}, n_samples {n_samples}, score {score}"
            )
        self._measure = NoisyInputLogits(sigma, n_samples, self.seed)

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure,)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        own = {"sigma": self._measure.sigma, "n_samples": self._measure.n_samples}
        return {**config, **own, "score": self.score_name}, tensors

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        logits = passes.extras[self._measure.key].to(torch.float64)
        return self.task.score(self.score_name, logits.movedim(1, 0))


ABLATIONS: dict[str, type[Detector]] = {"tulip-norm": NormForDrift, "noise-input": InputNoise}
