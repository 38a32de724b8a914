"""Where the tensors of a user's network hang, so that those in it now are found, not old ones.

Most changes write into a tensor. But `load_state_dict(assign=True)` puts others in their place, as
`model.to(…)` does with buffers, and a new last layer brings its own.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tulip_ood.errors import ModelError

__all__ = ["Followed"]

Slot = tuple[Mapping[str, Any], str]


class Followed:
    """A network's tensors by where they hang.

    Buffers that are not part of its state are caches, which a forward pass may renew: those that
    were there first are kept.

    Args:
        model: The user's network.
        parameters: Its parameters, by any names; tied ones once.
        buffers: Its buffers, by any names.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> followed = Followed(net, dict(net.named_parameters()), {})
        >>> net.bias = torch.nn.Parameter(torch.ones(1))
        >>> followed.now()[0]["bias"].item()
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
    ) -> None:
        self._parameters, self._buffers = dict(parameters), dict(buffers)
        parts = list(model.modules())
        self._inside = [(part._modules, list(part._modules.values())) for part in parts]
        slots: dict[int, list[Slot]] = {}
        for part in parts:
            caches = part._non_persistent_buffers_set
            held: tuple[Mapping[str, Any], ...] = (part._parameters, part._buffers)
            for place in held:
                for name, tensor in place.items():
                    if tensor is not None and not (place is part._buffers and name in caches):
                        slots.setdefault(id(tensor), []).append((place, name))
        known = {**self._parameters, **self._buffers}
        self._slots = {name: slots[id(t)] for name, t in known.items() if id(t) in slots}
        self._hanging = self._look()

    def now(self) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
        """Parameters and buffers that are in the network now, by the same names.

        Refuses a network whose layers are not the ones that they were.
        """
        for inside, parts in self._inside:
            if list(map(id, inside.values())) != list(map(id, parts)):
                raise _other_layers()
        if any(place.get(leaf) is not tensor for place, leaf, tensor in self._hanging):
            self._parameters = {name: self._at(name, t) for name, t in self._parameters.items()}
            self._buffers = {name: self._at(name, t) for name, t in self._buffers.items()}
            self._hanging = self._look()
        return self._parameters, self._buffers

    def _look(self) -> list[tuple[Mapping[str, Any], str, Any]]:
        return [
            (place, leaf, place[leaf]) for slots in self._slots.values() for place, leaf in slots
        ]

    def _at(self, name: str, before: Any) -> Any:
        """What hangs where a tensor was; tied ones must still be one."""
        found = [place.get(leaf) for place, leaf in self._slots.get(name, [])] or [before]
        if found[0] is None or found[0].shape != before.shape:
            raise _other_layers()
        if any(tensor is not found[0] for tensor in found):
            raise _other_layers()
        return found[0]


def _other_layers() -> ModelError:
    return ModelError(
        "layers of the network have been added, taken out or replaced since this detector was "
        "made: make a new one of the network as it is now"
    )
