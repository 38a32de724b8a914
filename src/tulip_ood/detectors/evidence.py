"""What a score is worth beside entropy, told from pseudo-OOD made from validation inputs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import Engine, PassCount
from tulip_ood.detectors.pseudo import pseudo_sets
from tulip_ood.detectors.recipes import Budget
from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.numerics.metrics import auroc

__all__ = ["Weights", "weigh", "weight_of"]

Weights = dict[str, float]
NOTHING_BELOW = 0.10  # of AUROC below entropy's: not listened to at all


def weight_of(found: float, by_entropy: float, nothing_below: float = NOTHING_BELOW) -> float:
    """1 for a score that finds pseudo-OOD as well as entropy does, 0 for one .1 of AUROC worse.

    Args:
        found: Its mean AUROC.
        by_entropy: That of entropy.
        nothing_below: So much worse is not listened to at all.

    Example:
        >>> weight_of(0.95, 0.9), round(weight_of(0.85, 0.9), 2), weight_of(0.6, 0.9)
        (1.0, 0.5, 0.0)
    """
    return min(max(1.0 - (by_entropy - found) / nothing_below, 0.0), 1.0)


def weigh(
    engine: Engine,
    rows: Rows,
    needs: Needs,
    scores: Mapping[str, Detector],
    *,
    seed: int,
    count: PassCount | None = None,
    says: Callable[[Detector, Any, Passes], Tensor] | None = None,
    nothing_below: Mapping[str, float] | None = None,
) -> tuple[Weights, dict[str, Any]]:
    """How much each score should count, and the mean AUROCs that say so.

    Scores learn from one half of the inputs; kinds of pseudo-OOD are made from the other half, and
    told apart from it. (A changed copy lies nearest to its own original: neighbours that had
    learned from the original would look worse than they are.)

    Args:
        engine: Makes the passes.
        rows: Labelled validation inputs.
        needs: What the passes must hold.
        scores: Detectors that are ready to learn, by name.
        seed: Decides what is random in the kinds.
        count: Told of the passes that are made.
        says: What a detector says of passes, given what it has learned; its score by default.
        nothing_below: For some of the scores, see `weight_of`.

    Returns:
        The weights, all 0 where no kind is left to judge by; and for the report the AUROCs.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.detectors import GEN
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> detector, y = GEN(model), (model(x) + torch.randn(200, 3)).argmax(1)
        >>> engine, needs = detector.engine, detector._needs()
        >>> rows = engine.collect([(x, y)], needs, seed=0, memory=1 << 20)
        >>> weights, said = weigh(engine, rows, needs, {"gen": detector}, seed=0)
        >>> 0 <= weights["gen"] <= 1, sorted(said)
        (True, ['entropy', 'gen', 'kinds'])
    """
    budget, half = Budget(), len(rows) // 2
    samples = min(budget.samples, needs.settings.n_samples)
    few = replace(needs, settings=needs.settings.with_(n_samples=samples))
    judged, learned_from = rows.take(range(half)), rows.take(range(half, len(rows)))

    progress = count.add if count is not None else None

    def passes_of(part: Rows) -> Passes:
        some = part.take(range(min(budget.id_inputs, len(part))))
        made = engine.passes_of(some, few, seed=seed, progress=progress)
        return made.only_finite()

    try:
        kinds = pseudo_sets(engine, judged, few, seed=seed, progress=progress)
    except InputError:
        return dict.fromkeys(scores, 0.0), {"kinds": []}
    inside, learned = passes_of(judged), passes_of(learned_from)

    def found(score: Callable[[Passes], Tensor]) -> float:
        own = score(inside)
        each = [auroc(own, score(outside)) for outside in kinds.values()]
        return sum(each) / len(each)

    task = engine.network.task
    said: dict[str, Any] = {"kinds": sorted(kinds)}
    said["entropy"] = found(lambda passes: task.base_uncertainty(passes.base))
    for name, detector in scores.items():
        own = partial(says, detector) if says is not None else detector._score
        said[name] = found(partial(own, detector._learn(learned)))
    limits = dict.fromkeys(scores, NOTHING_BELOW) | dict(nothing_below or {})
    return {n: weight_of(said[n], said["entropy"], limits[n]) for n in scores}, said
