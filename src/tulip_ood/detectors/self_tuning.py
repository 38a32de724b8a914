"""The recipes `self-1` and `self-2`: which passes a search makes, which kinds and ε take part.

A kind on which the network keeps 80 % of its accuracy keeps the label (upside-down tissue is still
tissue) and says nothing about OOD; an ε at which the noisy network loses 10 % of its accuracy is
too large. Both are dropped before anything is ranked.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tulip_ood.detectors.engine import Engine, PassCount
from tulip_ood.detectors.fitting import CROSS_FIT_BELOW
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.tuning import Candidate, SearchSpace, best_first, candidates
from tulip_ood.errors import InputError, TulipWarning
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
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
from tulip_ood.shifts.kinds import Range, domain_of, kinds_for, main_tensor, shift

__all__ = ["Budget", "Tuning", "pseudo_sets", "shifted_rows", "tune"]

KEEPS_LABEL = 0.8
KEEPS_ACCURACY = 0.9
FEWEST_KINDS = 3
_HALVINGS = 12

Kind = str | Callable[[Inputs], Inputs]


@dataclass(frozen=True)
class Budget:
    """How much a search may look at. The default costs less than three plain calibrations.

    Attributes:
        id_inputs: Validation inputs.
        kind_inputs: Inputs of each kind of pseudo-OOD.
        ood_inputs: Inputs of real OOD validation data, where there is some.
        samples: Noisy passes.

    Example:
        >>> Budget().samples
        4
    """

    id_inputs: int = 256
    kind_inputs: int = 128
    ood_inputs: int = 1024
    samples: int = 4


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
    labels = runner.labels(inside, base.logits)
    assert labels is not None
    clean = task.performance(base.logits, labels)
    if ood is not None:
        outside, kept_label = (
            {"OOD validation data": ood.take(range(min(budget.ood_inputs, len(ood))))},
            {},
        )
        outside_base = {name: runner.base(part) for name, part in outside.items()}
    else:
        made = _make_kinds(inside, space.kinds, budget.kind_inputs, seed)
        outside_base = {name: runner.base(part) for name, part in made.items()}
        kept_label = _that_keep_the_label(runner, made, outside_base, clean)
        outside = {name: part for name, part in made.items() if name not in kept_label}
    each = 1 + perturbation.settings.n_samples  # noisy passes and the drift
    inputs = len(inside) + sum(len(part) for part in outside.values())
    count.expect(len(space.epsilon) * each * inputs + afterwards)
    epsilons, spoiled, inside_passes = _usable_epsilons(runner, inside, base, clean, space.epsilon)
    few = ood is None and space.kinds is None and len(outside) < FEWEST_KINDS
    if few or not outside:
        nearest = min(epsilons, key=lambda e: abs(e - fallback.epsilon))
        setting = fallback.with_given(nearest, None, None)
        return Tuning(setting, (), (), kept_label, epsilons, spoiled, runner.forwards)
    found: list[Candidate] = []
    for epsilon in epsilons:
        outside_passes = {
            name: _finite(runner.passes(part, outside_base[name], epsilon))
            for name, part in outside.items()
        }
        found += candidates(
            inside_passes[epsilon], outside_passes, task, score, space, sqrt_outputs=sqrt_outputs
        )
    ranked = best_first(found, by)
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
    )


def _finite(passes: Passes) -> Passes:
    return passes.take(passes.finite.nonzero().squeeze(1))


def _make_kinds(
    inside: Rows, kinds: Sequence[Kind] | None, inputs: int, seed: int
) -> dict[str, Rows]:
    chosen = inside.take(range(min(inputs, len(inside))))
    if kinds is None:
        first = chosen.inputs[0]
        place = main_tensor(first)
        kinds = kinds_for(domain_of(first if place is None else first[place]))
    made: dict[str, Rows] = {}
    for kind in kinds:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)
        if name in made:  # two lambdas, say
            name = f"{name} ({len(made) + 1})"
        made[name] = shifted_rows(chosen, kind, seed)
    return made


def pseudo_sets(engine: Engine, rows: Rows, needs: Needs, *, seed: int) -> dict[str, Passes]:
    """Passes of the usual kinds of pseudo-OOD, without those that keep the label.

    Args:
        engine: Makes the passes.
        rows: Validation inputs; only those that are learned from are used.
        needs: What the passes must hold.
        seed: Decides what is random in the kinds.

    Example:
        >>> import tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> detector, y = tulip_ood.detectors.GEN(model), (model(x) + torch.randn(200, 3)).argmax(1)
        >>> rows = detector.engine.collect([(x, y)], detector._needs(), seed=0, memory=1 << 20)
        >>> sorted(pseudo_sets(detector.engine, rows, detector._needs(), seed=0))
        ['mixed_rows', 'permuted_columns']
    """
    task, budget = engine.network.task, Budget()
    own = rows.take(range(len(rows) if len(rows) < CROSS_FIT_BELOW else len(rows) // 2))
    clean = engine.passes_of(own.take(range(min(budget.id_inputs, len(own)))), needs, seed=seed)
    labels = task.check_labels(_labels(clean), clean.base)
    accuracy = task.performance(clean.base, labels)
    found: dict[str, Passes] = {}
    for name, part in _make_kinds(own, None, budget.kind_inputs, seed).items():
        made = _finite(engine.passes_of(part, needs, seed=seed))
        kept = task.performance(made.base, task.check_labels(_labels(made), made.base))
        if accuracy <= 0 or kept <= KEEPS_LABEL * accuracy:
            found[name] = made
    if not found:
        raise InputError(
            "the network keeps its answers on every kind of pseudo-OOD, so nothing can be chosen "
            "on them: pass a loader of OOD inputs"
        )
    return found


def _labels(passes: Passes) -> Tensor:
    assert passes.labels is not None
    return passes.labels


def shifted_rows(rows: Rows, kind: Kind, seed: int) -> Rows:
    """Rows changed by one kind of pseudo-OOD; the labels stay those of the originals.

    Example:
        >>> import torch
        >>> from tulip_ood.network.rows import collect_rows
        >>> rows = collect_rows([(torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))])
        >>> len(shifted_rows(rows, "negative", seed=0))
        4
    """
    changed: list[Inputs] = [None] * len(rows)
    for index, batch in rows.batches(len(rows)):
        if callable(kind):
            result = kind(batch)
        else:
            place = main_tensor(batch)
            main = batch if place is None else batch[place]
            within = Range.of(main) if main.is_floating_point() or main.ndim == 4 else None
            result = shift(batch, kind, seed=seed, within=within)
        if structures.count_rows(result) != len(index):
            raise InputError(
                f"a kind of pseudo-OOD must return as many inputs as it gets; got "
                f"{structures.count_rows(result)} for {len(index)}"
            )
        for at, i in enumerate(index.tolist()):
            changed[i] = structures.take(result, slice(at, at + 1))
    return Rows(tuple(changed), rows.labels, rows.digests, rows.seen, rows.dropped)


def _that_keep_the_label(
    runner: _Runner,
    made: Mapping[str, Rows],
    base: Mapping[str, Forwarded],
    clean: float,
) -> dict[str, float]:
    task = runner.perturbation.network.task
    dropped = {}
    for name, rows in made.items():
        labels = runner.labels(rows, base[name].logits)
        assert labels is not None
        kept = task.performance(base[name].logits, labels)
        if clean > 0 and kept > KEEPS_LABEL * clean:
            dropped[name] = kept / clean
    return dropped


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
        each = [
            task.performance(noisy, made.labels) if bool(noisy.isfinite().all()) else 0.0
            for noisy in made.noisy
        ]
        mean = sum(each) / len(each)
        if mean >= KEEPS_ACCURACY * clean or clean <= 0:
            passes[epsilon] = made
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
        warnings.warn(
            f"even noise of ε = {smaller:g} spoils the network's accuracy: check that the labels "
            f"belong to the outputs",
            TulipWarning,
            stacklevel=2,
        )
        torch._assert(bool(spoiled), "at least one ε was tried")
        passes[smaller] = _finite(runner.passes(inside, base, smaller))
        usable = (smaller,)
    return usable, spoiled, passes
