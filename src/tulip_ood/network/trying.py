"""Running a network on inputs that it may not be made for."""

import contextlib
from collections.abc import Iterator, Mapping

from tulip_ood.errors import TulipError
from tulip_ood.network import inputs as structures
from tulip_ood.network.gathering import is_out_of_memory
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.refusing import network_refuses

__all__ = ["in_our_words"]

_SAID = (
    RuntimeError,
    AssertionError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
)


@contextlib.contextmanager
def in_our_words(network: Network, row: Inputs) -> Iterator[None]:
    """While a network runs on inputs like one: an error of ours, if it is they that do not fit.

    Other errors pass through: of the caller's own code, of memory, or of a module that fails
    now and then.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> with in_our_words(network, torch.zeros(1, 5)):
        ...     network.run(torch.zeros(20, 5))
        Traceback (most recent call last):
        tulip_ood.errors.RefusedError: the network cannot run on inputs of shape [N, 5]: mat1 ...
    """
    try:
        yield
    except _SAID as error:
        found = next((tensor for _, tensor in structures.tensors(row)), None)
        if found is None or isinstance(error, TulipError) or is_out_of_memory(error):
            raise
        try:
            network.run(row)
        except _SAID:
            keys = tuple(row) if isinstance(row, Mapping) else ()
            raise network_refuses(error, found, keys) from error
        raise
