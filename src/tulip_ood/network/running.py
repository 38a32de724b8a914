"""The plain passes of Alg. 1, one after another: the reference that faster ways are tested against.

Base, M noisy and drift pass, each a forward of the whole network over all inputs, and whatever else
is to be measured of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import Head
from tulip_ood.network.gathering import Gathered, at_positions, batches_of, is_out_of_memory
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.keys import content_key
from tulip_ood.network.measures import Look, Measure, run_looking
from tulip_ood.network.network import Network, Output
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.numerics import random
from tulip_ood.numerics.tasks import Task

__all__ = ["Forwarded", "Needs", "dense_labels", "dense_positions", "forward", "run_passes"]

Progress = Callable[[int], None]  # called with the number of inputs that went through a pass
_POSITIONS = 256  # positions kept of each dense output while fitting


@dataclass(frozen=True)
class Needs:
    """Which passes and measures a detector asks for.

    Attributes:
        settings: The noisy passes; M = 0 for the base pass alone.
        noisy_features: Whether the features of the noisy passes are wanted too.
        measures: What else is to be measured.

    Example:
        >>> Needs(PassSettings(0.01, n_samples=4)).passes
        6
    """

    settings: PassSettings
    noisy_features: bool = False
    measures: tuple[Measure, ...] = ()

    @classmethod
    def base_pass(cls, *, seed: int = 0, measures: tuple[Measure, ...] = ()) -> "Needs":
        """The base pass alone, and what else is measured beside it."""
        return cls(PassSettings(epsilon=1.0, n_samples=0, seed=seed), measures=measures)

    @property
    def passes(self) -> int:
        """Forward passes for one input."""
        return self.settings.n_passes + sum(measure.passes for measure in self.measures)

    def check(self, passes: Passes) -> None:
        """Refuse a record that was made in another way, or lacks something."""
        if not passes.settings.serves(self.settings):
            raise InputError(
                f"these passes were made with {passes.settings}, but this detector needs "
                f"{self.settings}"
            )
        lacking = [m.key for m in self.measures if m.key not in passes.extras]
        if self.noisy_features and self.settings.n_samples and passes.noisy_features is None:
            lacking.append("features of the noisy passes")
        if lacking:
            raise InputError(f"these passes lack what this detector needs: {', '.join(lacking)}")


@dataclass(frozen=True)
class Forwarded:
    """One pass over all inputs, on the CPU unless asked for elsewhere.

    Attributes:
        logits: [N, …, o].
        features: [N, d], where asked for and there are any.
        head: The last linear layer in this pass, where its output are the logits.
        extras: What else was measured, by key.

    Example:
        >>> Forwarded(torch.zeros(2, 3), None, None, {}).logits.shape
        torch.Size([2, 3])
    """

    logits: Tensor
    features: Tensor | None
    head: Head | None
    extras: dict[str, Tensor]


def forward(
    network: Network,
    source: Rows | Inputs,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    batch_size: int,
    positions: Tensor | None = None,
    features: bool = False,
    measures: Sequence[Measure] = (),
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> Forwarded:
    """One pass over all inputs.

    Args:
        network: The network.
        source: Held rows, or inputs as the model takes them.
        parameters: θ of this pass; the network's own by default.
        batch_size: How many at a time; out of memory halves it for the batch in question.
        positions: For dense outputs, which positions to keep: uniform numbers [N, P] in [0, 1).
        features: Whether to keep penultimate features.
        measures: What else to measure of the inputs.
        progress: Called with the number of inputs that went through a pass, measures counted.
        device: Where outputs are kept; on the CPU by default.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> forward(network, torch.zeros(5, 4), batch_size=2).logits.shape
        torch.Size([5, 3])
    """
    n = len(source) if isinstance(source, Rows) else structures.count_rows(source)
    logits, kept = (Gathered(n, what, device) for what in ("outputs", "features"))
    extras = {measure.key: Gathered(n, measure.key, device) for measure in measures}
    looks = [measure for measure in measures if isinstance(measure, Look)]
    head: Head | None = None
    for index, batch in batches_of(source, batch_size):
        if network.probed:
            network.probe(batch)  # for guards that have not seen a finite output yet
        out, looked = _run_or_halve(network, batch, parameters, looks)
        logits.put(
            index, out.logits if positions is None else at_positions(out.logits, positions[index])
        )
        head = out.head
        if features and out.features is not None:
            kept.put(index, out.features)
        for measure in measures:
            known = looked.get(measure.key)
            extras[measure.key].put(index, measure(network, batch) if known is None else known)
        if progress is not None:
            progress(len(index) * (1 + sum(measure.passes for measure in measures)))
    if logits.whole is None:
        raise InputError("there are no inputs")
    if head is not None:
        head = Head(*(part.detach().to(device or "cpu") for part in head))
    found = {key: rows.whole for key, rows in extras.items() if rows.whole is not None}
    return Forwarded(logits.whole, kept.whole, head, found)


def _run_or_halve(
    network: Network,
    batch: Inputs,
    parameters: Mapping[str, Tensor] | None,
    looks: Sequence[Look],
) -> tuple[Output, dict[str, Tensor]]:
    """The network's output, and what looks find; what does not fit in memory is cut in two."""
    try:
        return run_looking(network, batch, parameters, looks)
    except RuntimeError as error:  # torch.OutOfMemoryError is one, the CPU allocator's is plain
        n = structures.count_rows(batch)
        if n < 2 or not is_out_of_memory(error):
            raise
    if network.device.type == "cuda":
        torch.cuda.empty_cache()
    (one, found), (two, more) = (
        _run_or_halve(network, structures.take(batch, part), parameters, looks)
        for part in (slice(0, n // 2), slice(n // 2, n))
    )
    both = None
    if one.features is not None and two.features is not None:
        both = torch.cat([one.features, two.features])
    looked = {key: torch.cat([rows, more[key]]) for key, rows in found.items()}
    return Output(torch.cat([one.logits, two.logits]), both, two.head), looked


def dense_positions(task: Task, rows: int, seed: int) -> Tensor | None:
    """Which positions to keep of each dense output while fitting; None for other tasks.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> dense_positions(make_task("dense"), 3, seed=0).shape
        torch.Size([3, 256])
    """
    if task.name != "dense":
        return None
    return random.uniform((rows, _POSITIONS), seed=seed, name="positions")


def dense_labels(labels: Tensor, positions: Tensor | None) -> Tensor:
    """Labels at the kept positions.

    Example:
        >>> dense_labels(torch.tensor([[7, 8]]), torch.tensor([[0.0, 0.9, 0.1]]))
        tensor([[7, 8, 7]])
    """
    if positions is None:
        return labels
    return at_positions(labels.unsqueeze(-1), positions).squeeze(-1)


def run_passes(
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
    device: torch.device | None = None,
) -> Passes:
    """Base, M noisy and (where the settings want it) drift passes (Alg. 1, lines 2–7).

    Args:
        perturbation: The network and what is done to it; M = 0 makes the base pass alone.
        source: Held rows, or inputs as the model takes them.
        batch_size: How many at a time.
        needs: What is wanted beside the logits.
        positions: See `forward`.
        labels: Go along in the record.
        base: The base pass, if it is there already.
        epsilon: Another ε than the perturbation's (never held in memory).
        keyed: Whether to compute the content key (hashes weights and inputs).
        progress: Called with the number of inputs that went through a pass.
        device: Where the record is kept; on the CPU by default.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> run_passes(perturbation, torch.zeros(5, 4), batch_size=2).noisy.shape
        torch.Size([2, 5, 3])
    """
    network, settings = perturbation.network, perturbation.settings
    needs = needs or Needs(settings)
    if epsilon is not None:
        settings = settings.with_(epsilon=epsilon)
    run = partial(
        forward,
        network,
        source,
        batch_size=batch_size,
        positions=positions,
        progress=progress,
        device=device,
    )
    if base is None:
        base = run(features=True, measures=needs.measures)
    noisy = base.logits.new_empty((settings.n_samples, *base.logits.shape))
    moved_features: list[Tensor] = []
    heads = [base.head]
    if settings.n_samples:
        for i, parameters in enumerate(perturbation.noisy(epsilon)):
            out = run(parameters, features=needs.noisy_features)
            noisy[i] = out.logits
            heads.append(out.head)
            if out.features is not None:
                moved_features.append(out.features)
    drift = None
    if settings.makes_drift:
        drift = run(perturbation.drifted(epsilon), features=needs.noisy_features)
        heads.append(drift.head)
    kept = needs.noisy_features and len(moved_features) == settings.n_samples > 0
    if not needs.noisy_features:
        heads = heads[:1]
    is_logits = network.known_probe.head_is_logits if network.probed else False
    return Passes(
        base=base.logits,
        noisy=noisy,
        drift=None if drift is None else drift.logits,
        features=base.features,
        labels=labels,
        settings=settings,
        key=content_key(
            perturbation,
            settings,
            source,
            labels=labels,
            positions=positions,
            noisy_features=kept,
            extras=base.extras,
        )
        if keyed
        else "",
        ids=source.digests if isinstance(source, Rows) else None,
        noisy_features=torch.stack(moved_features) if kept else None,
        drift_features=drift.features if kept and drift is not None else None,
        heads=tuple(head for head in heads if head is not None) if is_logits else (),
        extras=base.extras,
    )
