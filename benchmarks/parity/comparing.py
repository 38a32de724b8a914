"""What a comparison is, and its verdict."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from problem import BATCH, Problem
from torch import Tensor

from tulip_ood.detectors import gram
from tulip_ood.detectors.base import Detector

EQUAL = 1e-4  # of the range of the library's scores
ALPHA = 0.01  # of NCI: with 0, which is the default, half of its score would not be compared
SAME_RANKING = 1e-6  # that Spearman's correlation may be below 1


@dataclass(frozen=True)
class Reference:
    """A library's definition of a method.

    Attributes:
        method: Our name of it.
        theirs: Scores of the test data in our sign and unit; high = unsure.
        settings: Of our detector, to be what theirs is.
        unit: What was done to the library's numbers to put them in our unit.
        why: Why scores differ, where they do.
        without: Both scores once the difference that `why` names is taken away.
        facts: Numbers that bear `why` out.
    """

    method: str
    theirs: Callable[[Problem], Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    unit: str = ""
    why: str = ""
    without: Callable[[Problem, Detector], tuple[Tensor, Tensor]] | None = None
    facts: Callable[[Problem, Detector], dict[str, float]] | None = None


def difference(one: Tensor, two: Tensor) -> tuple[float, float]:
    """max |one − two| / range of two, and Spearman's correlation."""
    one, two = one.to(torch.float64), two.to(torch.float64)
    spread = float(two.max() - two.min())
    return float((one - two).abs().max()) / spread, spearman(one, two)


def spearman(one: Tensor, two: Tensor) -> float:
    """Of average ranks."""
    ranks = torch.stack([_ranks(one), _ranks(two)])
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Tensor) -> Tensor:
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).to(torch.float64)
    return (last - (counts - 1) / 2)[place]


def verdict(share: float, rank: float) -> str:
    """In words."""
    if share <= EQUAL:
        return "equal"
    return "same ranking" if rank >= 1 - SAME_RANKING else "differs"


def compare(problem: Problem, library: str, reference: Reference, detector: Detector) -> dict:
    """One row of the result."""
    share, rank = difference(detector.score(problem.test), reference.theirs(problem))
    row: dict[str, Any] = {
        "method": reference.method,
        "library": library,
        "difference": share,
        "spearman": rank,
        "verdict": verdict(share, rank),
    }
    if reference.unit:
        row["unit"] = reference.unit
    if reference.settings:
        row["settings"] = reference.settings
    if row["verdict"] != "equal":
        row["why"] = reference.why
        if reference.without is not None:
            share, rank = difference(*reference.without(problem, detector))
            row["without"] = {
                "difference": share,
                "spearman": rank,
                "verdict": verdict(share, rank),
            }
        if reference.facts is not None:
            row["facts"] = reference.facts(problem, detector)
    return row


def score_with(detector: Detector, state: Any, problem: Problem) -> Tensor:
    """Our scores if the detector had learned something else."""
    own, detector._state = detector._state, state
    try:
        return detector.score(problem.test)
    finally:
        detector._state = own


def temperatures(detector: Detector, problem: Problem, theirs: float) -> dict[str, float]:
    """Ours and theirs, and the negative log-likelihood of the validation labels at both."""
    logits, labels = problem.logits(problem.val[0]).double(), problem.val[1]
    own = detector._state.temperature
    return {
        "temperature": own,
        "their_temperature": theirs,
        "negative_log_likelihood": float(F.cross_entropy(logits / own, labels)),
        "their_negative_log_likelihood": float(F.cross_entropy(logits / theirs, labels)),
    }


def gram_learned_with(detector: Detector, problem: Problem, held: Tensor) -> Any:
    """What our Gram learns if just the marked training inputs are held out, with a tiny guard."""

    def guard(low: Tensor, high: Tensor) -> Tensor:
        return torch.full((*low.shape[1:-1], 1), 1e-6, dtype=torch.float64)

    learner = detector._learner()
    chosen = mock.patch.object(
        gram, "held_out_tenth", lambda first, count, seed: held[first : first + count]
    )
    with chosen, mock.patch.object(gram, "_floor", guard):
        x, y = problem.train
        batches = zip(x.split(BATCH), y.split(BATCH), strict=True)
        for part in detector.engine.stream(batches, detector._needs()):
            learner.add(part)
        return learner.finish()
