"""The recipes `self-1` and `self-2`: which passes a search makes, which kinds and ε take part.

A kind on which the network keeps 80 % of its accuracy keeps the label (upside-down tissue is still
tissue) and says nothing about OOD; an ε at which the noisy network loses 10 % of its accuracy is
too large. Both are dropped before anything is ranked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.pseudo import KEEPS_LABEL, make_kinds, share_kept
from tulip_ood.detectors.recipes import Budget, Setting
from tulip_ood.detectors.steadiness import Steadiness, steadiest_first
from tulip_ood.detectors.tuning import (
    Candidate,
    SearchSpace,
    best_first,
    candidates,
)
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import (
    Forwarded,
    Needs,
    dense_labels,
    dense_positions,
    forward,
    run_passes,
)
from tulip_ood.numerics.tasks import Task

__all__ = ["Tuning", "tune"]

KEEPS_ACCURACY = 0.9
FEWEST_KINDS = 3
_HALVINGS = 12


@dataclass(frozen=True)
class Tuning:
    """What the search found and what it cost.

    Attributes:
        setting: The winner, or a fallback where too few kinds were left.
        ranked: All candidates, best first; empty after a fallback.
        kinds: The kinds that took part.
        kept_label: Kinds that were dropped, with the share of the accuracy that is kept on them.
        epsilons: The values of ε that took part.
        spoiled: Values of ε that were dropped, with the noisy accuracy.
        forwards: Inputs times passes that were spent.
        hopeless: Whether no ε, however small, keeps the accuracy.

    Example:
        >>> Tuning(Setting(0.005), (), (), {}, (0.005,), {}, 0).forwards
        0
    """

    setting: Setting
    ranked: tuple[Candidate, ...]
    kinds: tuple[str, ...]
    kept_label: dict[str, float]
    epsilons: tuple[float, ...]
    spoiled: dict[float, float]
    forwards: int
    hopeless: bool = False


class _Runner:
    """Makes passes over rows at any ε, and counts them."""

    def __init__(
        self,
        perturbation: Perturbation,
        batch_size: int,
        seed: int,
        count: PassCount,
        features: bool,
    ) -> None:
        self.perturbation = perturbation
        self.batch_size = batch_size
        self.seed = seed
        self.features = features
        self.forwards = 0
        self._progress = count

    def _count(self, n: int) -> None:
        self.forwards += n
        self._progress.add(n)

    def positions(self, rows: Rows) -> Tensor | None:
        return dense_positions(self.perturbation.network.task, len(rows), self.seed)

    def base(self, rows: Rows) -> Forwarded:
        return forward(
            self.perturbation.network,
            rows,
            batch_size=self.batch_size,
            positions=self.positions(rows),
            features=self.features,
            progress=self._count,
        )

    def passes(self, rows: Rows, base: Forwarded, epsilon: float) -> Passes:
        positions = self.positions(rows)
        return run_passes(
            self.perturbation,
            rows,
            batch_size=self.batch_size,
            positions=positions,
            labels=self.labels(rows, base.logits),
            base=base,
            epsilon=epsilon,
            needs=Needs(self.perturbation.settings, noisy_features=self.features),
            progress=self._count,
        )

    def in_batches(self, rows: Rows, epsilon: float, batch_size: int) -> Passes:
        """All passes, with batches of another size."""
        before, self.batch_size = self.batch_size, batch_size
        try:
            return self.passes(rows, self.base(rows), epsilon)
        finally:
            self.batch_size = before

    def labels(self, rows: Rows, base: Tensor) -> Tensor | None:
        if rows.labels is None:
            return None
        task = self.perturbation.network.task
        return task.check_labels(dense_labels(rows.labels, self.positions(rows)), base)


def tune(
    perturbation: Perturbation,
    rows: Rows,
    score: str,
    space: SearchSpace,
    fallback: Setting,
    *,
    by: str,
    budget: Budget,
    sqrt_outputs: bool,
    batch_size: int,
    seed: int,
    ood: Rows | None = None,
    count: PassCount | None = None,
) -> Tuning:
    """Search the space on a sample of the rows and pseudo-OOD made from it.

    Args:
        perturbation: The network, with the number of samples to search with.
        rows: Validation inputs to choose on (not those of the threshold), in a random order.
        score: The score that will be used.
        space: What is tried.
        fallback: Used, with an ε that passes, where fewer than three kinds are left.
        by: How to choose, "auroc" or "rank".
        budget: How much to look at.
        sqrt_outputs: Whether the drift is multiplied by √o.
        batch_size: Inputs in one forward pass.
        seed: Decides what is random in the kinds.
        ood: Real OOD validation inputs; then no pseudo-OOD is made.
        count: Told of every input that goes through a pass.

    Example:
        >>> import tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Linear(16, 3))
        >>> x = torch.randn(200, 4)
        >>> detector = tulip_ood.Tulip(model).fit([(x, model(2 * x).argmax(1))])  # calls tune
        >>> detector._tuning.epsilons
        (0.001, 0.002, 0.005, 0.01)
    """
    task = perturbation.network.task
    count = count or PassCount(None)
    afterwards = count.total - count.done
    runner = _Runner(perturbation, batch_size, seed, count, bool(space.shaping))
    inside = rows.take(range(min(budget.id_inputs, len(rows))))
    base = runner.base(inside)
    good = base.logits.isfinite().flatten(1).all(dim=1)
    if not bool(good.all()) and bool(good.any()):
        inside = inside.take(good.nonzero().squeeze(1).tolist())
        base = runner.base(inside)
    labels = runner.labels(inside, base.logits)
    assert labels is not None
    clean = task.performance(base.logits, labels)
    chance = task.chance(base.logits, labels)
    if ood is not None:
        outside, kept_label = (
            {"OOD validation data": ood.take(range(min(budget.ood_inputs, len(ood))))},
            {},
        )
        outside_base = {name: runner.base(part) for name, part in outside.items()}
    else:
        made = make_kinds(inside, space.kinds, budget.kind_inputs, seed)
        outside_base = {name: runner.base(part) for name, part in made.items()}
        kept_label = _that_keep_the_label(runner, made, outside_base, clean, chance)
        outside = {name: part for name, part in made.items() if name not in kept_label}
    each = perturbation.settings.n_passes - 1  # the base pass is made
    inputs = len(inside) + sum(len(part) for part in outside.values())
    count.expect(len(space.epsilon) * each * inputs + afterwards)
    epsilons, spoiled, inside_passes = _usable_epsilons(runner, inside, base, clean, space.epsilon)
    hopeless = epsilons[0] in spoiled
    few = ood is None and space.kinds is None and len(outside) < FEWEST_KINDS
    if few or not outside:
        nearest = min(epsilons, key=lambda e: abs(e - fallback.epsilon))
        setting = fallback.with_given(nearest, None, None)
        return Tuning(setting, (), (), kept_label, epsilons, spoiled, runner.forwards, hopeless)
    found: list[Candidate] = []
    for epsilon in epsilons:
        outside_passes = {
            name: runner.passes(part, outside_base[name], epsilon).only_finite()
            for name, part in outside.items()
        }
        found += candidates(
            inside_passes[epsilon],
            outside_passes,
            task,
            score,
            space,
            sqrt_outputs=sqrt_outputs,
            device=perturbation.network.device,
        )
    ranked = best_first(found, by)
    if perturbation.network.device.type == "cpu":
        judge = Steadiness(runner.in_batches, inside, inside_passes, task, score, sqrt_outputs)
        ranked = steadiest_first(ranked, judge.gap)
    setting = ranked[0].setting
    if space.j:
        # J as it was judged: J* of another sample would be another J.
        setting = replace(setting, j=ranked[0].j)
    return Tuning(
        setting,
        tuple(ranked),
        tuple(outside),
        kept_label,
        epsilons,
        spoiled,
        runner.forwards,
        hopeless,
    )


def _that_keep_the_label(
    runner: _Runner,
    made: Mapping[str, Rows],
    base: Mapping[str, Forwarded],
    clean: float,
    chance: float,
) -> dict[str, float]:
    task = runner.perturbation.network.task
    dropped = {}
    for name, rows in made.items():
        labels = runner.labels(rows, base[name].logits)
        assert labels is not None
        kept = task.performance(base[name].logits, labels)
        if (share := share_kept(kept, clean, chance)) > KEEPS_LABEL:
            dropped[name] = share
    return dropped


def _finite_performance(task: Task, logits: Tensor, labels: Tensor) -> float:
    """Rows that are not finite count as wrong."""
    good = logits.isfinite().flatten(1).all(dim=1)
    if not bool(good.any()):
        return 0.0
    return task.performance(logits[good], labels[good]) * float(good.to(torch.float64).mean())


def _usable_epsilons(
    runner: _Runner,
    inside: Rows,
    base: Forwarded,
    clean: float,
    grid: Sequence[float],
) -> tuple[tuple[float, ...], dict[float, float], dict[float, Passes]]:
    """ε at which noisy passes keep 90 % of the accuracy, what was dropped, and the ID passes."""
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
