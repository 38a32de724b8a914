"""What a method measures of an input beside the passes: with other inputs, layers, or networks.

A measure is made once for each input, next to the base pass, and stored in the `Passes` record
under its key. So every detector, however it works, learns and scores from a record alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network, Output

__all__ = ["Look", "Looking", "Measure", "View", "run_looking"]


class Measure(ABC):
    """One thing to be measured. Two with the same key are the same.

    Example:
        >>> class Norm(Measure):
        ...     key = "norm"
        ...     def __call__(self, network, inputs):
        ...         return network.run(inputs).logits.norm(dim=-1)
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 2), make_task("classification"))
        >>> Norm()(network, torch.zeros(3, 2)).shape
        torch.Size([3])
    """

    @property
    @abstractmethod
    def key(self) -> str:
        """A name that says all that the measure depends on, beside network and input."""

    @abstractmethod
    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """The measure of every input, [N, …]; each row must depend on its own input alone."""

    @property
    def passes(self) -> int:
        """Forward passes that it costs, a backward pass counted as two."""
        return 1


class View(Measure):
    """A measure that is one plain pass over other inputs, made of those at hand.

    Example:
        >>> import torch
        >>> class Doubled(View):
        ...     key = "doubled"
        ...     def change(self, inputs):
        ...         return [2 * t for t in inputs] if isinstance(inputs, tuple) else 2 * inputs
        ...     def of(self, out):
        ...         return out.logits
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 2), make_task("classification"))
        >>> Doubled()(network, torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    @abstractmethod
    def change(self, inputs: Inputs) -> Inputs:
        """The other inputs, of the same shapes.

        Args:
            inputs: As the model takes them, or the tensors in them alone, as a tuple.
        """

    @abstractmethod
    def of(self, out: Output) -> Tensor:
        """What is kept of the pass over them, [N, …]."""

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """The measure of every input."""
        return self.of(network.run(self.change(inputs)))


class Look(Measure):
    """A measure of what parts of the network give in the base pass: it costs no pass of its own.

    Example:
        >>> import torch
        >>> class First(Look):
        ...     key = "first"
        ...     looks = {"0": lambda out: out.mean(dim=1)}
        ...     def gathered(self, found):
        ...         return found["0"]
        >>> from tulip_ood.numerics.tasks import make_task
        >>> layers = torch.nn.Linear(2, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3)
        >>> network = Network(torch.nn.Sequential(*layers), make_task("classification"))
        >>> First()(network, torch.zeros(4, 2)).shape, First().passes
        (torch.Size([4]), 0)
    """

    @property
    @abstractmethod
    def looks(self) -> Mapping[str, Callable[[Any], Tensor]]:
        """Part of the network → a function of its output, [N, …].

        It is called while the network runs: what comes after may change a tensor in place. Of a
        part that runs several times, the last counts.
        """

    @abstractmethod
    def gathered(self, found: Mapping[str, Tensor]) -> Tensor:
        """The measure of every input, from what was found at each part."""

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """The measure of every input, by a pass of its own."""
        return run_looking(network, inputs, None, (self,))[1][self.key]

    @property
    def passes(self) -> int:
        """None of its own."""
        return 0


class Looking:
    """What some looks find while the network runs once.

    Args:
        looks: Which.

    Example:
        >>> Looking(()).measured()
        {}
    """

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = looks
        self._found: dict[str, dict[str, Tensor]] = {look.key: {} for look in looks}

    @property
    def edits(self) -> dict[str, Callable[[Any], None]]:
        """For every part that is looked at, what is done with its output."""
        wanted: dict[str, list[tuple[str, Callable[[Any], Tensor]]]] = {}
        for look in self._looks:
            for name, function in look.looks.items():
                wanted.setdefault(name, []).append((look.key, function))

        def edit(name: str) -> Callable[[Any], None]:
            def keep(out: Any) -> None:
                for key, function in wanted[name]:
                    self._found[key][name] = function(out)

            return keep

        return {name: edit(name) for name in wanted}

    def measured(self) -> dict[str, Tensor]:
        """The measures by key, after the network has run."""
        return {look.key: look.gathered(self._found[look.key]) for look in self._looks}


def run_looking(
    network: Network,
    inputs: Inputs,
    parameters: Mapping[str, Tensor] | None,
    looks: Sequence[Look],
) -> tuple[Output, dict[str, Tensor]]:
    """A pass, and what looks find in it, by key.

    Args:
        network: The network.
        inputs: As the model takes them.
        parameters: θ of this pass; the network's own by default.
        looks: Which.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 3), make_task("classification"))
        >>> out, found = run_looking(network, torch.zeros(4, 2), None, ())
        >>> out.logits.shape, found
        (torch.Size([4, 3]), {})
    """
    looking = Looking(looks)
    out = network.run(inputs, parameters, edits=looking.edits)
    return out, looking.measured()
