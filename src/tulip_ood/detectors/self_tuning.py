"""The recipes `self-1` and `self-2`: which passes a search makes, which kinds and ε take part.

A kind on which the network keeps 80 % of its accuracy keeps the label (upside-down tissue is still
tissue) and says nothing about OOD; an ε at which the noisy network loses 10 % of its accuracy is
too large. Both are dropped before anything is ranked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.pseudo import KEEPS_LABEL, make_kinds, share_kept
from tulip_ood.detectors.recipes import Budget, Setting
from tulip_ood.detectors.steadiness import Steadiness, steadiest_first
from tulip_ood.detectors.trial_passes import Looked, Runner, usable_epsilons
from tulip_ood.detectors.tuning import (
    Candidate,
    SearchSpace,
    best_first,
    candidates,
)
from tulip_ood.network.network import Network
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Forwarded
from tulip_ood.network.trying import in_our_words

if TYPE_CHECKING:
    from tulip_ood.network.passes import Passes

__all__ = ["Tuning", "as_judged", "tune"]

FEWEST_KINDS = 3


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
        looked: What was looked at, for choices that come after; None after a fallback.

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
    looked: Looked | None = field(default=None, repr=False, compare=False)


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
    features: bool = False,
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
        features: Whether the base passes keep features although nothing is shaped.

    Example:
        >>> import torch, tulip_ood
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
    runner = Runner(perturbation, batch_size, seed, count, bool(space.shaping), features)
    inside, base = _inside(runner, rows.take(range(min(budget.id_inputs, len(rows)))))
    labels = runner.labels(inside, base.logits)
    assert labels is not None
    clean = task.performance(base.logits, labels)
    kept_label: dict[str, float] = {}
    if ood is not None:
        outside = {"OOD validation data": ood.take(range(min(budget.ood_inputs, len(ood))))}
    else:
        outside = make_kinds(inside, space.kinds, budget.kind_inputs, seed)
        if space.kinds is not None:
            _check_own(perturbation.network, outside)
    outside_base = {name: runner.base(part) for name, part in outside.items()}
    if ood is None:
        chance = task.chance(base.logits, labels)
        kept_label = _that_keep_the_label(runner, outside, outside_base, clean, chance)
        outside = {name: part for name, part in outside.items() if name not in kept_label}
    each = perturbation.settings.n_passes - 1  # the base pass is made
    inputs = len(inside) + sum(len(part) for part in outside.values())
    count.expect(len(space.epsilon) * each * inputs + afterwards)
    epsilons, spoiled, inside_passes = usable_epsilons(runner, inside, base, clean, space.epsilon)
    hopeless = epsilons[0] in spoiled
    few = ood is None and space.kinds is None and len(outside) < FEWEST_KINDS
    if few or not outside:
        nearest = min(epsilons, key=lambda e: abs(e - fallback.epsilon))
        setting = fallback.with_given(nearest, None, None)
        return Tuning(setting, (), (), kept_label, epsilons, spoiled, runner.forwards, hopeless)
    found: list[Candidate] = []
    made: dict[float, Mapping[str, Passes]] = {}
    for epsilon in epsilons:
        made[epsilon] = runner.outside(outside, outside_base, epsilon)
        found += candidates(
            inside_passes[epsilon],
            made[epsilon],
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
    setting = as_judged(ranked[0], space)
    return Tuning(
        setting,
        tuple(ranked),
        tuple(outside),
        kept_label,
        epsilons,
        spoiled,
        runner.forwards,
        hopeless,
        Looked(
            inside,
            base,
            outside,
            outside_base,
            clean,
            inside_passes[setting.epsilon],
            made[setting.epsilon],
        ),
    )


def _inside(runner: Runner, rows: Rows) -> tuple[Rows, Forwarded]:
    """ID inputs whose outputs are finite, if any are, with their base pass."""
    base = runner.base(rows)
    good = base.logits.isfinite().flatten(1).all(dim=1)
    if bool(good.all()) or not bool(good.any()):
        return rows, base
    rows = rows.take(good.nonzero().squeeze(1).tolist())
    return rows, runner.base(rows)


def as_judged(candidate: Candidate, space: SearchSpace) -> Setting:
    """The setting of a candidate that won, with J as it was judged.

    Example:
        >>> as_judged(Candidate(Setting(0.01, j_scaling=2.0), 3.0, {}), SearchSpace()).j
        3.0
    """
    if not space.j:
        return candidate.setting
    # J* of another sample would be another J.
    return replace(candidate.setting, j=candidate.j)


def _check_own(network: Network, kinds: Mapping[str, Rows]) -> None:
    """Refuse what a user's own kinds have made, where the network cannot run on it."""
    for part in kinds.values():
        with in_our_words(network, part.inputs[0]):
            network.run(part.inputs[0])


def _that_keep_the_label(
    runner: Runner,
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
