"""ODIN: temperature and input perturbation (Liang, Li & Srikant, ICLR 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.logits import Nothing
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError
from tulip_ood.network.input_changes import move_inputs
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import scores
from tulip_ood.wording import counted

__all__ = ["ODIN", "PerturbedLogits"]


@dataclass(frozen=True)
class PerturbedLogits(Measure):
    """Logits of x − noise · sign(∇ₓ CE(z/T, argmax z)) / std; a gradient of 0 counts as positive.

    Attributes:
        temperature: T.
        noise: The size of the step.
        std: What inputs were divided by, one number or one a channel.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> PerturbedLogits(1000.0, 0.0014, (1.0,))(network, torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    temperature: float
    noise: float
    std: tuple[float, ...]

    @property
    def key(self) -> str:
        """All that it depends on."""
        std = ",".join(f"{s:.17g}" for s in self.std)
        return f"odin:T={self.temperature:.17g}:noise={self.noise:.17g}:std={std}"

    @property
    def passes(self) -> int:
        """A pass, its gradient, and a pass of the moved inputs."""
        return 4

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """Logits [N, o] of the moved inputs."""
        return network.run(move_inputs(network, inputs, self._loss, self._step)).logits

    def _loss(self, logits: Tensor) -> Tensor:
        answer = logits.detach().argmax(dim=-1)
        loss = functional.cross_entropy(logits / self.temperature, answer, reduction="none")
        return self.temperature * loss  # the sign is the same, and a large T does not underflow

    def _step(self, x: Tensor, gradient: Tensor) -> Tensor:
        sign = (gradient >= 0).to(x.dtype) * 2 - 1
        return x - self.noise * sign / self._spread(x)

    def _spread(self, x: Tensor) -> Tensor:
        std = x.new_tensor(self.std)
        if len(self.std) == 1:
            return std
        if x.ndim < 2 or x.shape[1] != len(self.std):
            raise InputError(
                f"odin: std has {counted(len(self.std), 'number')}, one for each channel, but the "
                f"inputs have the shape {list(x.shape)}: give one number, or as many as dimension "
                f"1 has"
            )
        return std.reshape(-1, *[1] * (x.ndim - 2))


class ODIN(Detector):
    """1 − max softmax(z/T) of inputs that were moved towards the answer.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        temperature: T.
        noise: The size of the step, in the unit of inputs before they were divided by `std`.
        std: What inputs were divided by before they came here, one number or one for each
            channel; 1 for a step in the unit that the model is given.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.detectors.odin import ODIN
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = ODIN(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "odin"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing
    search: Mapping[str, tuple[Any, ...]] = {
        "temperature": (1.0, 10.0, 100.0, 1000.0),
        "noise": (0.0014, 0.0028),
    }

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        temperature: float = 1000.0,
        noise: float = 0.0014,
        std: float | Sequence[float] = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        self.std = tuple(map(float, std)) if isinstance(std, Sequence) else (float(std),)
        if not (temperature > 0 and noise >= 0 and self.std and min(self.std) > 0):
            raise InputError(
                f"odin needs temperature > 0, noise ≥ 0 and std > 0; got temperature "
                f"{temperature}, noise {noise}, std {std}"
            )
        self.temperature, self.noise = float(temperature), float(noise)

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure(),)

    def _measure(self) -> PerturbedLogits:
        return PerturbedLogits(self.temperature, self.noise, self.std)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return {**config, "std": list(self.std)}, tensors

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        logits = passes.extras[self._measure().key].to(torch.float64)
        return scores.msp((logits / self.temperature).softmax(dim=-1))
