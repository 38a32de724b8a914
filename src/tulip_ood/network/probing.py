"""The first look at a network: what it consists of, and whether it can be scored at all."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tulip_ood.errors import ModelError
from tulip_ood.network import guards
from tulip_ood.network import inputs as structures
from tulip_ood.network.deciding import candidates_of, deciding_layer
from tulip_ood.network.features import Calls, find_head, record_calls
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.operations import NOT_COUNTED, Compute, count_compute
from tulip_ood.network.skeleton import Skeleton

if TYPE_CHECKING:
    from tulip_ood.network.network import Network

__all__ = ["FirstLook", "Probe"]

_TRIES = 8  # batches without a finite output after which the guards give up


@dataclass(frozen=True)
class Probe:
    """What a first look at the network with a few inputs has found.

    Attributes:
        n_outputs: o.
        outputs_per_input: o times the number of positions.
        calls: Which part ran when.
        head: The name of the last linear layer, or None.
        head_is_logits: Whether that layer's output are the logits, with nothing done to them.
        compute: What one pass computes.
        head_decides: Whether the logits follow from that layer's output (or the user has named it).
        other_heads: Where they do not, further linear layers with as many outputs.

    Example:
        >>> Probe(10, 10, Calls({}), "fc", True).n_outputs
        10
    """

    n_outputs: int
    outputs_per_input: int
    calls: Calls
    head: str | None
    head_is_logits: bool
    compute: Compute = NOT_COUNTED
    head_decides: bool = True
    other_heads: tuple[str, ...] = ()


class FirstLook:
    """What is found by running a network on a few inputs, once.

    Args:
        skeleton: The network's private copy.

    Attributes:
        found: What was found, or None before.

    Example:
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> network.probe(torch.randn(2, 4)).n_outputs
        3
    """

    def __init__(self, skeleton: Skeleton) -> None:
        self.found: Probe | None = None
        self._skeleton = skeleton
        self._tries = 0
        self._guarded = False

    def at(self, network: "Network", inputs: Inputs) -> Probe:
        """See `Network.probe`, which holds the network's lock."""
        if self.found is None:
            self.found = self._first(network, guards.few_rows(inputs))
        elif not self._guarded and self._tries < _TRIES:
            rows = guards.few_rows(inputs)
            self._guard(network, rows, network.run(rows).logits)
        return self.found

    def _first(self, network: "Network", inputs: Inputs) -> Probe:
        """In float32 where a small network insists on it, in a cast of its own for instance."""
        narrow = {p.dtype for p in self._skeleton.parameters.values()} & {torch.float64} == set()
        if network.dtype != torch.float64 or not narrow:
            return self._see(network, inputs)
        try:
            return self._see(network, inputs)
        except (RuntimeError, TypeError, ValueError):
            network.stay_narrow()
            return self._see(network, inputs)

    def _see(self, network: "Network", inputs: Inputs) -> Probe:
        self._skeleton.call_user_hooks(False)  # a look that failed may have left them on
        calls, first = record_calls(network.module, lambda: network.run(inputs).logits)
        if self._skeleton.has_user_hooks:
            # Hooks that only watch must not hear of passes that the user never made.
            self._skeleton.call_user_hooks(True)
            if torch.equal(network.run(inputs).logits, first):
                self._skeleton.call_user_hooks(False)
            else:
                calls, first = record_calls(network.module, lambda: network.run(inputs).logits)
        self._guard(network, inputs, first)
        head, is_logits = find_head(calls, first, network.head_name)
        decides, candidates = True, candidates_of(network.module, calls, first)
        if head is None and candidates:  # logits that are made of a layer's output
            head, decides = deciding_layer(network, inputs, calls, first, candidates)
        compute = count_compute(lambda: network.run(inputs), network.parameters, len(first))
        spans = Calls(calls.spans)
        sizes = first.shape[-1], first[0].numel()
        others = () if decides else tuple(name for name in candidates if name != head)
        return Probe(*sizes, spans, head, is_logits, compute, decides, others)

    def _guard(self, network: "Network", inputs: Inputs, first: Tensor) -> None:
        """See `guards`: a few more passes over inputs whose outputs are `first`."""
        before = self._skeleton.own_buffers()
        again = network.run(inputs).logits
        changed = self._skeleton.changed_buffer(before)
        if changed is not None:
            self._skeleton.refresh_buffers(network.device, network.dtype)
            raise ModelError(
                f"the network changes its buffer {changed} in every pass although it is in "
                f"evaluation mode: a score would depend on what was scored before. Change it in "
                f"training mode alone (if self.training: …)"
            )
        finite = (first.isfinite() & again.isfinite()).flatten(1).all(dim=1)
        if not bool(finite.any()):
            self._tries += 1
            return
        guards.check_repeated(first[finite], again[finite])
        for one in finite.nonzero().flatten().tolist():
            row = structures.take(inputs, slice(one, one + 1))
            guards.check_alone(lambda x: network.run(x).logits, row, first[one])
        guards.check_reached(
            lambda: network.run(inputs, guards.shaken(network.parameters)).logits[finite],
            first[finite],
            again[finite],
        )
        self._guarded = True
