"""`n_samples="auto"`: noisy passes are added until the ranking of the inputs no longer moves.

Noise is keyed by its pair, so the passes of a smaller M are the first of a larger one's: nothing is
run twice. The ranking is that of validation inputs and pseudo-OOD together, by Spearman's ρ between
the scores of M passes and of two more.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tulip_ood.detectors.trial_passes import Looked, Runner
from tulip_ood.detectors.tuning import Candidate, scores_of
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Forwarded
from tulip_ood.numerics.metrics import spearman
from tulip_ood.numerics.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MOST_SAMPLES", "SampleChoice", "choose_samples"]

MOST_SAMPLES = 16
STILL = 0.997  # ρ at which a ranking counts as the same
ID_INPUTS, KIND_INPUTS = 128, 32  # that are ranked


@dataclass(frozen=True)
class SampleChoice:
    """How many noisy passes are enough.

    Attributes:
        n_samples: M.
        steps: M, and ρ between its ranking and that of M + 2, for every M that was tried.
        forwards: Inputs times passes that were spent.

    Example:
        >>> SampleChoice(6, ((2, 0.98), (4, 0.992), (6, 0.998)), 0).n_samples
        6
    """

    n_samples: int
    steps: tuple[tuple[int, float], ...]
    forwards: int


def choose_samples(
    runner: Runner,
    looked: Looked,
    candidate: Candidate,
    task: Task,
    score: str,
    *,
    sqrt_outputs: bool,
) -> SampleChoice:
    """The smallest even M whose ranking two more passes do not change.

    Args:
        runner: Makes further passes; its settings have the largest M.
        looked: Inputs, with passes of the first samples at the chosen ε.
        candidate: The setting that scores come from.
        task: What the outputs mean.
        score: The score that will be used.
        sqrt_outputs: Whether the drift is multiplied by √o.

    Example:
        >>> import tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        >>> model, x = torch.nn.Sequential(*layers), torch.randn(200, 4)
        >>> y = model(2 * x).argmax(1)
        >>> detector = tulip_ood.Tulip(model, n_samples="auto", j=1.0).fit([(x, y)])  # calls it
        >>> [m for m, _ in detector.report().facts["samples"]][0]
        2
    """
    candidate = replace(candidate, setting=replace(candidate.setting, shaping=None))
    parts = _parts(looked)
    passes = [passes for _, _, passes in parts]
    parameters = runner.perturbation.noisy(candidate.setting.epsilon, len(passes[0].noisy))
    steps: list[tuple[int, float]] = []
    before = _scores(passes, 2, candidate, task, score, sqrt_outputs)
    before_forwards = runner.forwards
    for m in range(2, runner.perturbation.settings.n_samples, 2):
        while len(passes[0].noisy) < m + 2:
            moved = next(parameters)
            passes = [
                replace(
                    one, noisy=torch.cat([one.noisy, runner.logits(rows, base, moved).unsqueeze(0)])
                )
                for (rows, base, _), one in zip(parts, passes, strict=True)
            ]
        after = _scores(passes, m + 2, candidate, task, score, sqrt_outputs)
        steps.append((m, spearman(before, after)))
        if steps[-1][1] >= STILL:
            break
        before = after
    last, rho = steps[-1]
    chosen = last if rho >= STILL else runner.perturbation.settings.n_samples
    return SampleChoice(chosen, tuple(steps), runner.forwards - before_forwards)


def _parts(looked: Looked) -> list[tuple[Rows, Forwarded, Passes]]:
    """The first inputs of each set that all passes are finite for, ID inputs first."""
    outside: Mapping[str, Passes] = looked.outside_passes
    sets = [(looked.inside, looked.inside_base, looked.inside_passes, ID_INPUTS)]
    sets += [
        (rows, looked.outside_base[name], outside[name], KIND_INPUTS)
        for name, rows in looked.outside.items()
    ]
    found = []
    for rows, base, passes, most in sets:
        few = passes.take(slice(0, most))
        place = {digest: i for i, digest in enumerate(rows.digests)}
        at = [place[digest] for digest in few.ids or ()]
        features = None if base.features is None else base.features[at]
        some = Forwarded(base.logits[at], features, base.head, {})
        found.append((rows.take(at), some, few))
    return found


def _scores(
    passes: list[Passes],
    m: int,
    candidate: Candidate,
    task: Task,
    score: str,
    sqrt_outputs: bool,
) -> Tensor:
    """Scores of all inputs together, from the first m noisy passes."""
    inside, *outside = [
        replace(one, noisy=one.noisy[:m], settings=one.settings.with_(n_samples=m))
        for one in passes
    ]
    found = scores_of(candidate, inside, outside, task, score, sqrt_outputs=sqrt_outputs)
    return torch.cat([scores.reshape(-1) for scores in found]).nan_to_num(torch.inf).cpu()
