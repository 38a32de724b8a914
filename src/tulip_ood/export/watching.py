"""The network's graph with one output more: what its inner stages see."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.network import guards
from tulip_ood.network import inputs as structures
from tulip_ood.network.exporting import _check_version, _export, _exporting, _Whole
from tulip_ood.network.inner import InnerStatistics, Stage
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network, Output
from tulip_ood.network.partition import Partition

__all__ = ["watched_partition"]


def watched_partition(
    network: Network, names: Collection[str], example: Inputs, inner: InnerStatistics
) -> Partition:
    """As `Partition.of`; the last value of a tail are the statistics of inner stages.

    Args:
        network: Is looked at with the example, if it has not been yet.
        names: The parameters that will be perturbed.
        example: Inputs as the model takes them.
        inner: Which statistics.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> conv = nn.Conv2d(1, 2, 3)
        >>> model = nn.Sequential(conv, nn.Flatten(), nn.Linear(72, 3))
        >>> network, x = Network(model, make_task("classification")), torch.rand(5, 1, 8, 8)
        >>> inner = InnerStatistics((Stage("0", 1, 2),))
        >>> partition = watched_partition(network, ["2.bias"], x, inner)
        >>> *_, seen = partition.all_values(partition.handed(x), [partition.weights()])[0]
        >>> torch.allclose(seen, inner(network, x))
        True
    """
    _check_version()
    rows = guards.few_rows(example)
    network.probe(rows)
    with _exporting:
        exported = _export(network, rows, partial(_Watched, inner=inner))
    partition = _WatchedPartition(network, frozenset(names), exported, rows)
    partition._check(rows)
    partition._measure(structures.take(rows, slice(0, 1)))
    return partition


class _Watched(_Whole):
    """From the tensors of the inputs to all that a pass gives, and what inner stages see."""

    def __init__(
        self, module: nn.Module, rows: Inputs, network: Network, inner: InnerStatistics
    ) -> None:
        super().__init__(module, rows, network)
        self._stages = inner.stages
        self._seen: dict[str, Tensor | None] = {}
        for stage in inner.stages:
            module.get_submodule(stage.name).register_forward_hook(self._look(stage))

    def _look(self, stage: Stage) -> Callable[[nn.Module, Any, Any], None]:
        def look(_: nn.Module, args: Any, out: Any) -> None:
            self._seen[stage.name] = stage.statistics(out)

        return look

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        values = super().forward(tensors)
        found = [self._seen.get(stage.name) for stage in self._stages]
        self._seen = {}
        return (*values, torch.cat([one for one in found if one is not None], dim=1))


class _WatchedPartition(Partition):
    def output(self, values: tuple[Any, ...], rows: int) -> Output:
        return super().output(values[:-1], rows)
