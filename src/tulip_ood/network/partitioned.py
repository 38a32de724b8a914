"""The passes of Alg. 1 through a partition: the trunk once for a batch, the tail in every pass.

The record is that of the plain passes (`running.py`), to rounding.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import Head
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.keys import content_key
from tulip_ood.network.network import Output
from tulip_ood.network.partition import Partition
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import (
    Forwarded,
    Needs,
    Progress,
    _at,
    _batches,
    _is_out_of_memory,
    _Rows,
    run_passes,
)

__all__ = ["run_partitioned"]

# Perturbed weights that are not held are drawn again for every group of batches: as many batches
# as have frontiers of this size go together.
_FRONTIERS = 512 << 20
_Batch = tuple[Tensor, Inputs]  # the rows' places, and the rows
_Parameters = Mapping[str, Tensor] | None


def run_partitioned(
    partition: Partition,
    perturbation: Perturbation,
    source: Rows | Inputs,
    *,
    batch_size: int,
    needs: Needs | None = None,
    positions: Tensor | None = None,
    labels: Tensor | None = None,
    base: Forwarded | None = None,
    epsilon: float | None = None,
    keyed: bool = False,
    progress: Progress | None = None,
) -> Passes:
    """What `run_passes` gives, with its arguments, for the price of one trunk and M + 2 tails.

    Batches of another kind than the partition was made for go through the whole network.

    Args:
        partition: The perturbation's network, cut so that all that is perturbed is in the tail.
        perturbation: See `run_passes`; the same goes for everything below.
        source: Held rows, or inputs as the model takes them.
        batch_size: How many at a time.
        needs: What is wanted beside the logits.
        positions: Which positions are kept of each dense output.
        labels: Go along in the record.
        base: The base pass, if it is there already.
        epsilon: Another ε than the perturbation's.
        keyed: Whether to compute the content key.
        progress: Called with the number of inputs that went through a pass.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> x = torch.rand(5, 4)
        >>> partition = Partition.of(network, perturbation.scales, x)
        >>> fast = run_partitioned(partition, perturbation, x, batch_size=2)
        >>> torch.allclose(fast.noisy, run_passes(perturbation, x, batch_size=2).noisy)
        True
    """
    _check_served(partition, perturbation)
    settings = perturbation.settings
    needs = needs or Needs(settings)
    if not settings.n_samples:
        return run_passes(
            perturbation,
            source,
            batch_size=batch_size,
            needs=needs,
            positions=positions,
            labels=labels,
            base=base,
            keyed=keyed,
            progress=progress,
        )
    if epsilon is not None:
        settings = settings.with_(epsilon=epsilon)
    work = _Work(partition, perturbation, needs, epsilon, positions)
    work.n = len(source) if isinstance(source, Rows) else structures.count_rows(source)
    work.begin(base, progress)
    work.over(_batches(source, batch_size), batch_size)
    made = base or work.forwarded()
    heads = [made.head, *work.heads] if needs.noisy_features else [made.head]
    network = perturbation.network
    is_logits = network.known_probe.head_is_logits if network.probed else False
    noisy, drift = work.logits.divided(settings.n_samples)
    noisy_features, drift_features = work.features.divided(settings.n_samples)
    assert noisy is not None  # there was at least one input
    return Passes(
        base=made.logits,
        noisy=noisy,
        drift=drift,
        features=made.features,
        labels=labels,
        settings=settings,
        key=content_key(
            perturbation,
            settings,
            source,
            labels=labels,
            positions=positions,
            noisy_features=noisy_features is not None,
            extras=made.extras,
        )
        if keyed
        else "",
        ids=source.digests if isinstance(source, Rows) else None,
        noisy_features=noisy_features,
        drift_features=drift_features,
        heads=tuple(head for head in heads if head is not None) if is_logits else (),
        extras=made.extras,
    )


def _check_served(partition: Partition, perturbation: Perturbation) -> None:
    if partition.network is not perturbation.network:
        raise InputError("the partition is one of another network")
    missing = sorted(set(perturbation.scales) - partition.names)
    if missing:
        raise InputError(
            f"{missing[0]} is perturbed, but the partition was made for other parameters: make one "
            f"for all of perturbation.scales"
        )


class _Work:
    """All passes over all batches; results land in tables, whatever the order."""

    def __init__(
        self,
        partition: Partition,
        perturbation: Perturbation,
        needs: Needs,
        epsilon: float | None,
        positions: Tensor | None,
    ) -> None:
        self._partition = partition
        self._network = perturbation.network
        self._perturbation = perturbation
        self._needs = needs
        self._epsilon = epsilon
        self._positions = positions
        self.n = 0

    def begin(self, base: Forwarded | None, progress: Progress | None) -> None:
        """Empty tables."""
        passes = self._perturbation.settings.n_passes - 1
        self.logits = _Table(passes, self.n, "outputs")
        self.features = _Table(passes, self.n, "features")
        self.heads: list[Head | None] = [None] * passes
        self._measures = self._needs.measures if base is None else ()
        self._makes_base = base is None
        self._base_logits, self._base_features = _Rows(self.n, "outputs"), _Rows(self.n, "features")
        self._extras = {measure.key: _Rows(self.n, measure.key) for measure in self._measures}
        self._base_head: Head | None = None
        self._progress = progress

    def forwarded(self) -> Forwarded:
        """The base pass."""
        if self._base_logits.whole is None:
            raise InputError("there are no inputs")
        extras = {key: rows.whole for key, rows in self._extras.items() if rows.whole is not None}
        return Forwarded(
            self._base_logits.whole, self._base_features.whole, self._base_head, extras
        )

    def over(self, batches: Iterator[_Batch], batch_size: int) -> None:
        """Everything, group by group."""
        together = 1
        if self._epsilon is not None or not self._perturbation.hold:
            together = max(1, _FRONTIERS // max(1, self._partition.row_bytes * batch_size))
        while group := list(islice(batches, together)):
            self._do_or_halve(group)
            if self._progress is not None:
                passes = self._perturbation.settings.n_passes - (not self._makes_base)
                for index, _ in group:
                    self._progress(passes * len(index))

    def _do_or_halve(self, group: list[_Batch]) -> None:
        """Batches that do not fit in memory are cut in two; what is done twice lands in place."""
        try:
            self._do(group)
            return
        except RuntimeError as error:
            alone = all(len(index) < 2 for index, _ in group) and len(group) == 1
            if alone or not _is_out_of_memory(error):
                raise
        if self._network.device.type == "cuda":
            torch.cuda.empty_cache()
        for index, batch in group:
            n = len(index)
            for part in (slice(0, n // 2), slice(n // 2, n)):
                if len(index[part]):
                    self._do_or_halve([(index[part], structures.take(batch, part))])

    def _do(self, group: list[_Batch]) -> None:
        runs: list[tuple[Tensor, Callable[[_Parameters], Output]]] = []
        for index, batch in group:
            if self._network.probed:
                self._network.probe(batch)  # for guards that have not seen a finite output yet
            run = self._runner(batch)
            if self._makes_base:
                self._put_base(index, batch, run(None))
            runs.append((index, run))
        for i, parameters in enumerate(self._moved()):
            for index, run in runs:
                self._put(i, index, run(parameters))

    def _moved(self) -> Iterator[Mapping[str, Tensor]]:
        """The parameters of the noisy passes and of the drift pass."""
        yield from self._perturbation.noisy(self._epsilon)
        if self._perturbation.settings.makes_drift:
            yield self._perturbation.drifted(self._epsilon)

    def _runner(self, batch: Inputs) -> Callable[[_Parameters], Output]:
        """A pass over a batch, as a function of the parameters."""
        if not self._partition.fits(batch):
            return lambda parameters: self._network.run(batch, parameters)
        frontier = self._partition.trunk(batch)
        return lambda parameters: self._partition.tail(frontier, parameters)

    def _put_base(self, index: Tensor, batch: Inputs, out: Output) -> None:
        self._base_logits.put(index, self._kept(out.logits, index))
        if out.features is not None:
            self._base_features.put(index, out.features)
        self._base_head = _on_cpu(out.head)
        for measure in self._measures:
            self._extras[measure.key].put(index, measure(self._network, batch))

    def _put(self, i: int, index: Tensor, out: Output) -> None:
        self.logits.put(i, index, self._kept(out.logits, index))
        if self._needs.noisy_features:
            self.heads[i] = _on_cpu(out.head)
            if out.features is not None:
                self.features.put(i, index, out.features)

    def _kept(self, logits: Tensor, index: Tensor) -> Tensor:
        return logits if self._positions is None else _at(logits, self._positions[index])


class _Table:
    """One row for every pass and input, [passes, N, …], filled in any order."""

    def __init__(self, passes: int, n: int, what: str) -> None:
        self._passes = [_Rows(n, what) for _ in range(passes)]
        self._whole: Tensor | None = None

    def put(self, i: int, index: Tensor, part: Tensor) -> None:
        rows = self._passes[i]
        if self._whole is None:
            rows.put(index, part)  # of which the shape and dtype are taken
            assert rows.whole is not None
            self._whole = rows.whole.new_empty((len(self._passes), *rows.whole.shape))
            for other, view in zip(self._passes, self._whole, strict=True):
                other.whole = view
        rows.put(index, part)

    def divided(self, n_samples: int) -> tuple[Tensor | None, Tensor | None]:
        """The noisy passes, and the drift pass; None for what there is not."""
        if self._whole is None:
            return None, None
        drift = self._whole[n_samples] if len(self._whole) > n_samples else None
        return self._whole[:n_samples], drift


def _on_cpu(head: Head | None) -> Head | None:
    return None if head is None else Head(*(part.detach().cpu() for part in head))
