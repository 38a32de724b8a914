"""`precision="auto"`: half precision where it changes nothing, shown on the validation data."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tulip_ood.network.passes import Passes
from tulip_ood.numerics.metrics import spearman

__all__ = ["Parity", "compare_precisions"]

_RANKING, _ANSWERS = 0.999, 0.999
Score = Callable[[Passes], Tensor]
Label = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parity:
    """How alike two precisions are.

    Attributes:
        holds: Whether half precision may take float32's place.
        reason: Why, or why not.

    Example:
        >>> Parity(False, "the scores rank otherwise").holds
        False
    """

    holds: bool
    reason: str


def compare_precisions(full: Passes, half: Passes, score: Score, label: Label) -> Parity:
    """Whether passes in half precision rank inputs and answer as those in float32 do.

    Args:
        full: Passes over validation inputs in float32.
        half: The same in half precision.
        score: Learns from passes and gives their scores.
        label: The answers that go with logits.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> def passes(logits):
        ...     none = logits.new_empty((0, *logits.shape))
        ...     return Passes(logits, none, None, None, None, PassSettings(1.0, n_samples=0))
        >>> logits = torch.linspace(-1, 1, 60).reshape(30, 2).square()
        >>> compare_precisions(
        ...     passes(logits),
        ...     passes(logits.half().float()),
        ...     lambda p: p.base[:, 0],
        ...     lambda f: f.argmax(1),
        ... ).holds
        True
    """
    usable = full.finite & half.finite
    if bool((full.finite & ~half.finite).any()):
        return Parity(False, "logits of some validation inputs overflow in half precision")
    full, half = full.take(usable), half.take(usable)
    answers = [label(passes.base) for passes in (full, half)]
    same = 1.0
    if not answers[0].is_floating_point():
        same = float((answers[0] == answers[1]).double().mean())
    ranking = spearman(score(full).flatten(), score(half).flatten())
    found = f"Spearman ρ of the scores {ranking:.5f}, the same answer to {100 * same:.2f} %"
    if ranking >= _RANKING and same >= _ANSWERS:
        return Parity(True, f"{found} of {len(full)} validation inputs")
    need = f"{_RANKING} and {100 * _ANSWERS:g} % are needed"
    return Parity(False, f"{found} of {len(full)} validation inputs, where {need}")
