"""The passes of Alg. 1 through a partition: the trunk once for a batch, the tail in every pass.

The record is that of the plain passes (`running.py`), to rounding.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.captured import Acceleration, Round
from tulip_ood.network.features import Head
from tulip_ood.network.gathering import Gathered, at_positions, batches_of, is_out_of_memory
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.keys import content_key
from tulip_ood.network.measures import Look, View, run_looking
from tulip_ood.network.network import Output
from tulip_ood.network.partition import Frontier, Partition, Weights
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import (
    Forwarded,
    Needs,
    Progress,
)

__all__ = ["hold_round", "moved_weights", "run_partitioned"]

# Perturbed weights that are not held are drawn again for every group of batches: as many batches
# as have frontiers of this size go together.
_FRONTIERS = 512 << 20
_Batch = tuple[Tensor, Inputs]  # the rows' places, and the rows
_Moved = tuple[Mapping[str, Tensor], Weights]  # perturbed parameters, plain and ready
_Pass = Callable[[_Moved | None], Output]


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
    together: Round | None = None,
    on_device: bool = False,
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
        together: All passes as one function, with weights that are held (`hold_round`).
        on_device: Leave the record where the passes were made.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.network.running import run_passes
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
    if epsilon is not None:
        settings = settings.with_(epsilon=epsilon)
        together = None
    work = _Work(partition, perturbation, needs, epsilon, positions, together)
    work.n = len(source) if isinstance(source, Rows) else structures.count_rows(source)
    work.begin(base, progress, partition.network.device if on_device else None)
    work.over(batches_of(source, batch_size), batch_size)
    made = base or work.forwarded()
    heads = [made.head, *work.heads] if needs.noisy_features else [made.head]
    network = perturbation.network
    is_logits = network.known_probe.head_is_logits if network.probed else False
    noisy, drift = _divided(work.logits.whole, settings.n_samples)
    noisy_features, drift_features = _divided(work.features.whole, settings.n_samples)
    return Passes(
        base=made.logits,
        noisy=made.logits.new_empty((0, *made.logits.shape)) if noisy is None else noisy,
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
        heads=tuple(_moved(h, work.device) for h in heads if h is not None) if is_logits else (),
        extras=made.extras,
    )


def hold_round(
    partition: Partition, perturbation: Perturbation, acceleration: Acceleration | None = None
) -> Round:
    """All passes of a perturbation with weights that are ready and held.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> partition = Partition.of(network, perturbation.scales, torch.rand(2, 4))
        >>> len(hold_round(partition, perturbation).weights)  # base, two noisy, drift
        4
    """
    moved = moved_weights(partition, perturbation, perturbation.settings.epsilon)
    weights = [partition.weights(), *(ready for _, ready in moved)]
    return Round(partition, weights, acceleration)


def moved_weights(
    partition: Partition, perturbation: Perturbation, epsilon: float | None = None
) -> Iterator[_Moved]:
    """Of the noisy passes and of the drift pass, plain and ready, one after another.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"bias": 1.0}, InitialMean({}, ()), settings)
        >>> partition = Partition.of(network, perturbation.scales, torch.rand(2, 4))
        >>> [sorted(plain) for plain, _ in moved_weights(partition, perturbation)]
        [['bias', 'weight'], ['bias', 'weight'], ['bias', 'weight']]
    """
    settings = perturbation.settings
    if not settings.n_samples:
        return
    for parameters in perturbation.noisy(epsilon):
        yield parameters, partition.weights(parameters)
    if settings.makes_drift:
        parameters = perturbation.drifted(epsilon)
        yield parameters, partition.weights(parameters)


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
        together: Round | None,
    ) -> None:
        self._together = together
        self._partition = partition
        self._network = perturbation.network
        self._perturbation = perturbation
        self._needs = needs
        self._epsilon = epsilon
        self._positions = positions
        self.n = 0

    def begin(
        self, base: Forwarded | None, progress: Progress | None, device: torch.device | None
    ) -> None:
        """Empty tables, on the CPU by default."""
        self.device = device or torch.device("cpu")
        passes = self._perturbation.settings.n_passes - 1
        self.logits, self.features = (
            Gathered(self.n, what, device, passes) for what in ("outputs", "features")
        )
        self.heads: list[Head | None] = [None] * passes
        self._measures = self._needs.measures if base is None else ()
        self._looks = [one for one in self._measures if isinstance(one, Look)]
        self._views = [one for one in self._measures if isinstance(one, View)]
        self._makes_base = base is None
        self._base_logits, self._base_features = (
            Gathered(self.n, what, device) for what in ("outputs", "features")
        )
        self._extras = {
            measure.key: Gathered(self.n, measure.key, device) for measure in self._measures
        }
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
                passes += sum(measure.passes for measure in self._measures)
                for index, _ in group:
                    self._progress(passes * len(index))

    def _do_or_halve(self, group: list[_Batch]) -> None:
        """Batches that do not fit in memory are cut in two; what is done twice lands in place."""
        try:
            self._do(group)
            return
        except RuntimeError as error:
            alone = all(len(index) < 2 for index, _ in group) and len(group) == 1
            if alone or not is_out_of_memory(error):
                raise
        if self._network.device.type == "cuda":
            torch.cuda.empty_cache()
        for index, batch in group:
            n = len(index)
            for part in (slice(0, n // 2), slice(n // 2, n)):
                if len(index[part]):
                    self._do_or_halve([(index[part], structures.take(batch, part))])

    def _do(self, group: list[_Batch]) -> None:
        runs: list[tuple[Tensor, _Pass]] = []
        for index, batch in group:
            if self._network.probed:
                self._network.probe(batch)  # for guards that have not seen a finite output yet
            if self._together is not None and self._partition.fits(batch):
                self._do_together(index, batch, self._together)
                continue
            frontier = self._trunk(batch)
            if self._makes_base:
                self._put_base(index, batch, *self._base_pass(batch, frontier))
            runs.append((index, self._runner(batch, frontier)))
        if not runs:
            return
        for i, moved in enumerate(
            moved_weights(self._partition, self._perturbation, self._epsilon)
        ):
            for index, run in runs:
                self._put(i, index, run(moved))

    def _do_together(self, index: Tensor, batch: Inputs, together: Round) -> None:
        """All passes, and then one copy of their outputs to where they are kept."""
        made = together(batch, self._views, features=self._needs.noisy_features)
        if made.logits is not None:
            logits = made.logits
            if self._positions is not None:
                logits = torch.stack([self._kept(one, index) for one in logits])
            self.logits.put(index, logits)
        if self._needs.noisy_features:
            self.heads[:] = made.heads
            if made.features is not None:
                self.features.put(index, made.features)
        if self._makes_base:
            seen = zip(self._views, made.views, strict=True)
            known = made.looked | {view.key: view.of(out) for view, out in seen}
            self._put_base(index, batch, made.base, known)

    def _runner(self, batch: Inputs, frontier: Frontier | None) -> _Pass:
        """A pass over a batch, as a function of the parameters."""
        if frontier is None:
            return lambda moved: self._network.run(batch, None if moved is None else moved[0])
        return lambda moved: self._partition.tail(frontier, None if moved is None else moved[1])

    def _trunk(self, batch: Inputs) -> Frontier | None:
        """What all passes have in common; None where the batch goes through the whole network."""
        return self._partition.trunk(batch) if self._partition.fits(batch) else None

    def _base_pass(
        self, batch: Inputs, frontier: Frontier | None
    ) -> tuple[Output, dict[str, Tensor]]:
        """The base pass, and what is measured in passes that are as fast."""
        if frontier is None:
            out, found = run_looking(self._network, batch, None, self._looks)
        elif self._looks:
            out, found = self._partition.base_tail(frontier)
        else:
            out, found = self._partition.tail(frontier), {}
        for view in self._views:
            other = view.change(batch)
            found[view.key] = view.of(self._runner(other, self._trunk(other))(None))
        return out, found

    def _put_base(
        self, index: Tensor, batch: Inputs, out: Output, known: Mapping[str, Tensor]
    ) -> None:
        self._base_logits.put(index, self._kept(out.logits, index))
        if out.features is not None:
            self._base_features.put(index, out.features)
        self._base_head = out.head
        for measure in self._measures:
            found = known.get(measure.key)
            rows = measure(self._network, batch) if found is None else found
            self._extras[measure.key].put(index, rows)

    def _put(self, i: int, index: Tensor, out: Output) -> None:
        self.logits.put(index, self._kept(out.logits, index), i)
        if self._needs.noisy_features:
            self.heads[i] = out.head
            if out.features is not None:
                self.features.put(index, out.features, i)

    def _kept(self, logits: Tensor, index: Tensor) -> Tensor:
        return logits if self._positions is None else at_positions(logits, self._positions[index])


def _divided(whole: Tensor | None, n_samples: int) -> tuple[Tensor | None, Tensor | None]:
    """The noisy passes, and the drift pass; None for what there is not."""
    if whole is None:
        return None, None
    return whole[:n_samples], whole[n_samples] if len(whole) > n_samples else None


def _moved(head: Head, device: torch.device) -> Head:
    return Head(*(part.detach().to(device) for part in head))
