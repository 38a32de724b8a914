"""Learning from one part of the validation data, and calibrating the threshold on the other.

A threshold set on scores that fitting has seen promises nothing. With 400 inputs or more, one half
(by a seeded hash of the content) is learned from and the other is held out; with fewer, five folds
are scored by what the other four taught.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.decision import Calibration
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.random import permutation
from tulip_ood.numerics.tasks import Task

__all__ = [
    "CROSS_FIT_BELOW",
    "Fit",
    "cross_fit",
    "learn_and_calibrate",
    "splits",
    "unscored_as_odd",
    "usable",
]

CROSS_FIT_BELOW = 400
FOLDS = 5
MANY = 2000  # two halves are enough
Fit = tuple[Any, Calibration, list[Any]]  # a state, held-out scores, the state of every split


def usable(passes: Passes, task: Task, seed: int) -> tuple[Passes, int]:
    """Labels checked, rows that are not finite left out, in a seeded order; and how many went.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> logits = torch.tensor([[1.0, 0.0], [float("nan"), 0.0], [0.0, 1.0]])
        >>> labels, none = torch.tensor([0, 1, 1]), torch.zeros(0, 3, 2)
        >>> passes = Passes(logits, none, None, None, labels, PassSettings(1.0, n_samples=0))
        >>> kept, left_out = usable(passes, make_task("classification"), seed=0)
        >>> len(kept), left_out
        (2, 1)
    """
    if passes.labels is None:
        raise InputError("fitting needs labels: batches of (inputs, labels)")
    passes = replace(passes, labels=task.check_labels(passes.labels, passes.base))
    good = passes.finite
    bad = int((~good).sum())
    if bad > len(passes) // 2:
        at_base = int((~passes.base.isfinite().flatten(1).all(dim=1)).sum())
        cause = (
            "the network itself gives NaN or Inf: check its weights and the inputs' scaling"
            if at_base > bad // 2
            else f"the perturbed network gives NaN or Inf at epsilon {passes.settings.epsilon:g}: "
            f"use a smaller epsilon, or leave sensitive layers out (layer_scale={{'name.*': 0}})"
        )
        raise ModelError(f"{bad} of {len(passes)} validation inputs cannot be used: {cause}")
    if bad:
        passes = passes.take(good.nonzero().squeeze(1))
    return passes.take(_order(passes, seed)), bad


def _order(passes: Passes, seed: int) -> Tensor:
    """By content where that is known, so that the loader's order does not matter."""
    if passes.ids is not None:
        return torch.tensor(sorted(range(len(passes)), key=passes.ids.__getitem__))
    return permutation(len(passes), seed=seed, name="split")


def learn_and_calibrate(
    passes: Passes,
    task: Task,
    learn: Callable[[Passes], Any],
    score: Callable[[Any, Passes], Tensor],
) -> Fit:
    """What was learned, the scores of inputs held out from it, and what each split has taught.

    Args:
        passes: As `usable` returns them.
        task: What the outputs mean.
        learn: From passes to a state.
        score: From a state and passes to scores.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> logits, none = torch.randn(500, 2), torch.zeros(0, 500, 2)
        >>> labels = torch.zeros(500, dtype=torch.int64)
        >>> passes = Passes(logits, none, None, None, labels, PassSettings(1.0, n_samples=0))
        >>> _, calibration, _ = learn_and_calibrate(
        ...     passes,
        ...     make_task("classification"),
        ...     lambda part: part.base.mean(0),
        ...     lambda mean, part: (part.base - mean).norm(dim=1),
        ... )
        >>> calibration.n_inputs, calibration.cross_fitted
        (250, False)
    """
    assert passes.labels is not None
    wrong = 1.0 - task.correct(passes.base, passes.labels)
    parts = splits(passes)
    cross_fitted = len(parts) > 1
    scores = torch.full(wrong.shape, torch.nan, dtype=torch.float64)
    taught = []
    for inside, held in parts:
        taught.append(learn(passes.take(inside)))
        found = score(taught[-1], passes.take(held)).to(torch.float64)
        scores[held] = unscored_as_odd(found)
    state = learn(passes) if cross_fitted else taught[-1]
    calibration = Calibration.of(scores, wrong, ids=passes.ids, cross_fitted=cross_fitted)
    return state, calibration, taught


def unscored_as_odd(scores: Tensor) -> Tensor:
    """+inf in the place of NaN: what has no score is refused later, and counts so here.

    Example:
        >>> unscored_as_odd(torch.tensor([1.0, torch.nan]))
        tensor([1., inf])
    """
    return torch.where(scores.isnan(), torch.inf, scores)


def cross_fit(
    passes: Passes, learn: Callable[[Passes], Any], score: Callable[[Any, Passes], Tensor]
) -> tuple[Any, Tensor]:
    """What all inputs taught, and the score of each by what others have taught.

    For scores that need a scale before the threshold is calibrated on data of its own: halving what
    is learned from once more would leave too little of it.

    Args:
        passes: As `usable` returns them.
        learn: From passes to a state.
        score: From a state and passes to scores.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> logits, none = torch.tensor([[0.0], [1.0], [2.0]]), torch.zeros(0, 3, 1)
        >>> passes = Passes(logits, none, None, None, None, PassSettings(1.0, n_samples=0))
        >>> mean, scores = cross_fit(
        ...     passes, lambda part: part.base.mean(), lambda mean, part: part.base[:, 0] - mean
        ... )
        >>> mean, scores
        (tensor(1.), tensor([-1.5000,  0.0000,  1.5000], dtype=torch.float64))
    """
    parts = splits(passes, always_folds=len(passes) < MANY)
    if len(parts) == 1:
        parts.append(parts[0][::-1])
    found = [score(learn(passes.take(inside)), passes.take(held)) for inside, held in parts]
    scores = torch.cat(found).to(torch.float64)
    order = torch.cat([held for _, held in parts])
    return learn(passes), scores[order.argsort()]


def splits(passes: Passes, *, always_folds: bool = False) -> list[tuple[Tensor, Tensor]]:
    """(learned from, held out), as indices: two halves, or five folds where inputs are few.

    Args:
        passes: As `usable` returns them.
        always_folds: Make folds, however many inputs there are.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> logits, none = torch.randn(100, 2), torch.zeros(0, 100, 2)
        >>> passes = Passes(logits, none, None, None, None, PassSettings(1.0, n_samples=0))
        >>> [len(held) for _, held in splits(passes)]
        [20, 20, 20, 20, 20]
    """
    everything = torch.arange(len(passes))
    if len(passes) >= CROSS_FIT_BELOW and not always_folds:
        half = _half(passes)
        return [(everything[:half], everything[half:])]
    fold = _distinct(passes) % FOLDS  # equal inputs stay in one fold
    folds = int(fold.max()) + 1
    if folds < 2:
        raise InputError(
            f"all {len(passes)} validation inputs are the same: none can be held out from fitting. "
            f"Does the loader give one input again and again?"
        )
    return [(everything[fold != k], everything[fold == k]) for k in range(folds)]


def _distinct(passes: Passes) -> Tensor:
    """The number of each input's content, in the order of `usable`: equal ones share it."""
    if passes.ids is None:
        return torch.arange(len(passes))
    numbers: dict[bytes, int] = {}
    return torch.tensor([numbers.setdefault(one, len(numbers)) for one in passes.ids])


def _half(passes: Passes) -> int:
    """The middle, moved on so that equal inputs stay on one side."""
    n = len(passes)
    half = n // 2
    while passes.ids is not None and half < n - 1 and passes.ids[half] == passes.ids[half - 1]:
        half += 1
    return half
