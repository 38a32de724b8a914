"""Which of several linear layers the logits come from, where no layer's output equals them.

Logits that are scaled are still those of one layer. A second head, a gate or the branch of a side
input may have as many outputs and run later; what tells them apart is that the logits stay what
they are when other inputs come and that one layer gives what it gave.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from tulip_ood.errors import ModelError
from tulip_ood.network import guards
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import Calls
from tulip_ood.network.inputs import Inputs

if TYPE_CHECKING:
    from tulip_ood.network.network import Network

__all__ = ["candidates_of", "deciding_layer"]

_SAME = 1e-3  # of the logits' size


def candidates_of(module: nn.Module, calls: Calls, logits: Tensor) -> tuple[str, ...]:
    """Linear layers that ran and have as many outputs as the network, the last one last.

    Without a position dimension: a convolution over a map is not a layer of feature vectors.

    Example:
        >>> import torch
        >>> from tulip_ood.network.features import record_calls
        >>> net = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 3), nn.Softplus())
        >>> candidates_of(net, *record_calls(net, lambda: net(torch.zeros(1, 2))))
        ('1',)
    """
    return tuple(
        name
        for name, out in calls.outputs.items()
        if out.shape[-1] == logits.shape[-1] and isinstance(module.get_submodule(name), nn.Linear)
    )


def deciding_layer(
    network: "Network", inputs: Inputs, calls: Calls, logits: Tensor, candidates: Sequence[str]
) -> tuple[str, bool]:
    """The last candidate that the logits follow from alone, and whether there is one.

    If there is none, the one that is fed the most (a side input is narrow), the last of several.

    Args:
        network: To be run again.
        inputs: A few rows.
        calls: What happened when they were run.
        logits: What came out.
        candidates: At least one name.

    Example:
        >>> import torch
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> class Two(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.main, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        ...     def forward(self, x):
        ...         return self.main(x) / 2, self.second(x)
        >>> network = Network(Two(), make_task("classification"), output=lambda both: both[0])
        >>> network.probe(torch.randn(4, 4)).head
        'main'
    """
    for name in reversed(candidates):
        if _decides(network, inputs, name, calls.outputs[name], logits):
            return name, True

    def width(name: str) -> int:
        layer = network.module.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        return layer.in_features

    return max(reversed(candidates), key=width), False


def _decides(network: "Network", inputs: Inputs, name: str, out: Tensor, logits: Tensor) -> bool:
    """Whether other inputs have the same logits if one layer gives the same."""
    alone = structures.count_rows(inputs) < 2
    other = (
        guards.companion(inputs)
        if alone
        else structures.map_tensors(lambda t: t.roll(1, dims=0), inputs)
    )
    try:
        found = network.run(other, edits={name: lambda _: out}).logits
    except (ModelError, RuntimeError, ValueError):  # it runs twice, with other sizes
        return False
    known = (found.isfinite() & logits.isfinite()).flatten(1).all(dim=1)
    if found.shape != logits.shape or not bool(known.any()):
        return found.shape == logits.shape  # nothing to see
    apart = float((found[known] - logits[known]).abs().max())
    return apart <= _SAME * max(float(logits[known].abs().max()), 1e-30)
