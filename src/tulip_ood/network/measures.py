"""What a method measures of an input beside the passes: with other inputs, layers, or networks.

A measure is made once for each input, next to the base pass, and stored in the `Passes` record
under its key. So every detector, however it works, learns and scores from a record alone.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network

__all__ = ["Measure"]


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
