"""Which share of a pass's multiplications depends on a parameter: what perturbing it repeats.

Seen by following one pass, operation by operation: what is computed from a parameter, or from
something that was, has to be computed anew when the parameter is another one.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network

__all__ = ["compute_shares"]

# Whole layers in one operation, whose multiplications nobody counts.
_OPAQUE = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")


def compute_shares(
    network: Network, inputs: Inputs, scopes: Mapping[str, Collection[str]]
) -> dict[str, float] | None:
    """For every set of parameters, the share of the multiplications that depends on it, 0 to 1.

    Matrix products, convolutions and attention count. None where a network's operations cannot be
    followed, or are none of these.

    Args:
        network: The network.
        inputs: A few inputs; the first is run once.
        scopes: Names of parameters, by what they are called.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> layers = torch.nn.Linear(4, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10)
        >>> network = Network(torch.nn.Sequential(*layers), make_task("classification"))
        >>> scopes = {"last": ["2.weight"], "all": ["0.weight", "2.weight"]}
        >>> shares = compute_shares(network, torch.rand(2, 4), scopes)
        >>> round(shares["last"], 2), shares["all"]
        (0.71, 1.0)
    """
    followed = _Following(
        {
            id(network.parameters[name]): [s for s, names in scopes.items() if name in names]
            for name in network.parameters
        }
    )
    one = structures.take(inputs, slice(0, 1))
    try:
        with followed:
            network.run(one)
    except Exception:  # a look that fails must not end a fit: the number is for the reader
        return None
    if not followed.total:
        return None
    return {scope: followed.repeated.get(scope, 0) / followed.total for scope in scopes}


class _Following(TorchDispatchMode):
    """Counts multiplications, and those that depend on some parameters."""

    def __init__(self, scopes_of: Mapping[int, Collection[str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.repeated: dict[str, int] = {}
        self._reached = {key: frozenset(scopes) for key, scopes in scopes_of.items()}
        self._alive: list[Tensor] = []  # so that no identity is given to another tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket.__name__ in _OPAQUE:
            raise NotImplementedError(str(func))
        out = func(*args, **kwargs)
        nothing: frozenset[str] = frozenset()
        reached = nothing.union(
            *(self._reached.get(id(t), nothing) for t in _tensors((args, kwargs)))
        )
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            flops = int(count(*args, **kwargs, out_val=out))
            self.total += flops
            for scope in reached:
                self.repeated[scope] = self.repeated.get(scope, 0) + flops
        for tensor in _tensors(out):
            self._alive.append(tensor)
            if reached:
                self._reached[id(tensor)] = reached | self._reached.get(id(tensor), nothing)
        return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
