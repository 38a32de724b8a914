"""The passes that a search looks at: at any ε, over rows and pseudo-OOD made from them, counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.detectors.engine import PassCount
from tulip_ood.network.fast import FastPasses
from tulip_ood.network.features import Head
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import (
    Forwarded,
    Needs,
    dense_labels,
    dense_positions,
    forward,
)
from tulip_ood.numerics.tasks import Task

__all__ = ["HeadRunner", "Looked", "Runner", "usable_epsilons"]

KEEPS_ACCURACY = 0.9
_HALVINGS = 12


@dataclass(frozen=True)
class Looked:
    """What a search has looked at, at the ε that it chose.

    Attributes:
        inside: ID inputs.
        inside_base: Their base pass.
        outside: OOD inputs by kind.
        outside_base: Their base passes, of further kinds perhaps.
        clean: The network's accuracy on the ID inputs.
        inside_passes: All passes of the ID inputs.
        outside_passes: All passes of each kind.

    Example:
        >>> sorted(Looked.__dataclass_fields__)[:2]
        ['clean', 'inside']
    """

    inside: Rows
    inside_base: Forwarded
    outside: Mapping[str, Rows]
    outside_base: Mapping[str, Forwarded]
    clean: float
    inside_passes: Passes
    outside_passes: Mapping[str, Passes]


class Runner:
    """Makes passes over rows at any ε, and counts them.

    Args:
        perturbation: The network and what is done to it.
        batch_size: Inputs in one forward pass.
        seed: Decides which positions of dense outputs are looked at.
        count: Told of every input that goes through a pass.
        noisy_features: Whether the features of all passes are kept.
        features: Whether those of base passes are, in any case.

    Attributes:
        forwards: Inputs times passes so far.

    Example:
        >>> import tulip_ood
        >>> detector, x = tulip_ood.Tulip(torch.nn.Linear(4, 3)), torch.randn(5, 4)
        >>> _ = detector.network.probe(x)
        >>> runner = Runner(detector._make_perturbation(detector._settings()), 64, 0)
        >>> from tulip_ood.network.rows import collect_rows
        >>> rows = collect_rows([(x, torch.zeros(5, dtype=torch.int64))])
        >>> runner.base(rows).logits.shape, runner.forwards
        (torch.Size([5, 3]), 5)
    """

    def __init__(
        self,
        perturbation: Perturbation,
        batch_size: int,
        seed: int,
        count: PassCount | None = None,
        noisy_features: bool = False,
        features: bool = False,
    ) -> None:
        self.perturbation = perturbation
        self.batch_size = batch_size
        self.seed = seed
        self.noisy_features = noisy_features
        self.features = features or noisy_features
        self.forwards = 0
        self._progress = count or PassCount(None)
        self._passes = FastPasses(perturbation.network, exact=True)

    def _count(self, n: int) -> None:
        self.forwards += n
        self._progress.add(n)

    def positions(self, rows: Rows) -> Tensor | None:
        """Which positions of dense outputs are looked at."""
        return dense_positions(self.perturbation.network.task, len(rows), self.seed)

    def base(self, rows: Rows) -> Forwarded:
        """The base pass."""
        return forward(
            self.perturbation.network,
            rows,
            batch_size=self.batch_size,
            positions=self.positions(rows),
            features=self.features,
            progress=self._count,
        )

    def passes(self, rows: Rows, base: Forwarded, epsilon: float) -> Passes:
        """Noisy and drift passes beside a base pass that is there."""
        positions = self.positions(rows)
        return self._passes.run(
            self.perturbation,
            rows,
            batch_size=self.batch_size,
            positions=positions,
            labels=self.labels(rows, base.logits),
            base=base,
            epsilon=epsilon,
            needs=Needs(self.perturbation.settings, noisy_features=self.noisy_features),
            progress=self._count,
        )

    def logits(self, rows: Rows, base: Forwarded, parameters: Mapping[str, Tensor]) -> Tensor:
        """One more pass."""
        made = forward(
            self.perturbation.network,
            rows,
            parameters,
            batch_size=self.batch_size,
            positions=self.positions(rows),
            progress=self._count,
        )
        return made.logits

    def in_batches(self, rows: Rows, epsilon: float, batch_size: int) -> Passes:
        """All passes, with batches of another size."""
        before, self.batch_size = self.batch_size, batch_size
        try:
            return self.passes(rows, self.base(rows), epsilon)
        finally:
            self.batch_size = before

    def outside(
        self, parts: Mapping[str, Rows], base: Mapping[str, Forwarded], epsilon: float
    ) -> dict[str, Passes]:
        """Passes of each kind of OOD, without inputs that are not finite in one of them."""
        return {
            name: self.passes(part, base[name], epsilon).only_finite()
            for name, part in parts.items()
        }

    def labels(self, rows: Rows, base: Tensor) -> Tensor | None:
        """The labels of rows, as the task wants them."""
        if rows.labels is None:
            return None
        task = self.perturbation.network.task
        return task.check_labels(dense_labels(rows.labels, self.positions(rows)), base)


class HeadRunner(Runner):
    """Passes that differ in the last linear layer alone: they follow from the base pass's features.

    Example:
        >>> import tulip_ood
        >>> detector = tulip_ood.Tulip(torch.nn.Linear(4, 3))
        >>> _ = detector.network.probe(torch.randn(5, 4))
        >>> perturbation = detector._make_perturbation(detector._settings())
        >>> HeadRunner.serves(perturbation, Forwarded(torch.zeros(5, 3), None, None, {}))
        False
    """

    @staticmethod
    def serves(perturbation: Perturbation, base: Forwarded) -> bool:
        """Whether the features of the base pass are all that is needed."""
        probe = perturbation.network.known_probe
        if not probe.head_is_logits or base.head is None or base.features is None:
            return False
        inside = all(name.startswith(f"{probe.head}.") for name in perturbation.scales)
        return inside and base.logits.ndim == 2

    def _head(self, base: Forwarded, parameters: Mapping[str, Tensor]) -> Head:
        assert base.head is not None
        name = self.perturbation.network.known_probe.head

        def moved(part: str, own: Tensor) -> Tensor:
            found = parameters.get(f"{name}.{part}")
            return own if found is None else found.cpu().to(own.dtype).reshape(own.shape)

        return Head(moved("weight", base.head.weight), moved("bias", base.head.bias))

    def logits(self, rows: Rows, base: Forwarded, parameters: Mapping[str, Tensor]) -> Tensor:
        """One more pass, without the network."""
        assert base.features is not None
        return self._head(base, parameters).logits(base.features)

    def passes(self, rows: Rows, base: Forwarded, epsilon: float) -> Passes:
        """Noisy and drift passes, without the network."""
        assert base.features is not None
        assert base.head is not None
        settings = self.perturbation.settings.with_(epsilon=epsilon)
        moved = [self._head(base, one) for one in self.perturbation.noisy(epsilon)]
        drifted = []
        if settings.makes_drift:
            drifted = [self._head(base, self.perturbation.drifted(epsilon))]
        return Passes(
            base=base.logits,
            noisy=torch.stack([head.logits(base.features) for head in moved]),
            drift=drifted[0].logits(base.features) if drifted else None,
            features=base.features,
            labels=self.labels(rows, base.logits),
            settings=settings,
            ids=rows.digests,
            noisy_features=base.features.expand(len(moved), *base.features.shape),
            drift_features=base.features if drifted else None,
            heads=(base.head, *moved, *drifted),
        )


def _finite_performance(task: Task, logits: Tensor, labels: Tensor) -> float:
    """Rows that are not finite count as wrong."""
    good = logits.isfinite().flatten(1).all(dim=1)
    if not bool(good.any()):
        return 0.0
    return task.performance(logits[good], labels[good]) * float(good.to(torch.float64).mean())


def usable_epsilons(
    runner: Runner,
    inside: Rows,
    base: Forwarded,
    clean: float,
    grid: Sequence[float],
) -> tuple[tuple[float, ...], dict[float, float], dict[float, Passes]]:
    """ε at which noisy passes keep 90 % of the accuracy, what was dropped, and the ID passes.

    Args:
        runner: Makes passes.
        inside: ID inputs.
        base: Their base pass.
        clean: The network's accuracy on them.
        grid: What is tried; if nothing of it is left, the smallest is halved until one is.

    Example:
        >>> import tulip_ood
        >>> detector, x = tulip_ood.Tulip(torch.nn.Linear(4, 3)), torch.randn(50, 4)
        >>> _ = detector.network.probe(x)
        >>> runner = Runner(detector._make_perturbation(detector._settings()), 64, 0)
        >>> from tulip_ood.network.rows import collect_rows
        >>> rows = collect_rows([(x, torch.zeros(50, dtype=torch.int64))])
        >>> usable_epsilons(runner, rows, runner.base(rows), 0.0, (0.01,))[0]
        (0.01,)
    """
    task = runner.perturbation.network.task
    passes: dict[float, Passes] = {}
    spoiled: dict[float, float] = {}

    def fits(epsilon: float) -> bool:
        made = runner.passes(inside, base, epsilon)
        assert made.labels is not None
        each = [_finite_performance(task, noisy, made.labels) for noisy in made.noisy]
        mean = sum(each) / len(each)
        if mean >= KEEPS_ACCURACY * clean or clean <= 0:
            passes[epsilon] = made.only_finite()
            return True
        spoiled[epsilon] = mean
        return False

    usable = tuple(epsilon for epsilon in sorted(grid) if fits(epsilon))
    smaller = min(grid)
    for _ in range(_HALVINGS):
        if usable:
            return usable, spoiled, passes
        smaller /= 2
        usable = (smaller,) if fits(smaller) else ()
    if not usable:
        passes[smaller] = runner.passes(inside, base, smaller).only_finite()
        usable = (smaller,)
    return usable, spoiled, passes
