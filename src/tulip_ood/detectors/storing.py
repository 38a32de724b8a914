"""What a detector file holds of a detector, and how it is made again from that."""

import os
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.engine import Engine
from tulip_ood.detectors.state import pack, unpack
from tulip_ood.network.network import Network
from tulip_ood.network.refusing import on_device
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.tasks import Task

__all__ = ["Storing"]


class Storing:
    """The part of a detector that is moved, saved and loaded.

    Example:
        >>> import torch, tulip_ood
        >>> tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).configuration()[0]["task"]
        'classification'
    """

    state_class: ClassVar[type]
    task: Task
    seed: int
    fit_memory: int
    network: Network
    engine: Engine
    _state: Any

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that can be chosen against OOD data, as they are now."""
        return {}

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a detector is not pickled or deep-copied (it holds a network and a lock): use "
            "detector.save(path) and tulip_ood.load(path, model)"
        )

    @on_the_cpu()
    def to(self, device: torch.device | str) -> Self:
        """Run passes on another device; what was fitted stays, to rounding."""
        with on_device(device):
            self.engine.move(torch.device(device))
        return self

    @on_the_cpu()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to one safetensors file, without the model."""
        from tulip_ood.detectors.saving import save  # it knows of every detector

        save(self, path)  # type: ignore[arg-type]

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, as JSON and tensors, for a detector file."""
        config = {"task": self.task.name, "seed": self.seed, "fit_memory": self.fit_memory}
        config["precision"] = self.network.precision
        config["head"] = self.network.head_name
        config["output"] = self.network.has_output_function
        return config | self.parameters, {}

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The detector that `configuration` described, not fitted yet."""
        arguments = {k: v for k, v in config.items() if k != "output"} | more
        return cls(model, **arguments)  # type: ignore[call-arg]

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was learned, as JSON and tensors, for a detector file."""
        return pack(self._state)

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        self._state = unpack(self.state_class, values, tensors)
