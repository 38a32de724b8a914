"""`precision="auto"`: half precision where it changes nothing, shown on the validation data."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tulip_ood.detectors.engine import Engine
from tulip_ood.errors import in_one_line
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.metrics import spearman

__all__ = ["Parity", "compare_precisions", "settle_precision"]

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


def settle_precision(
    engine: Engine, full: Passes, remake: Callable[[], Passes], score: Score
) -> tuple[Passes, Parity]:
    """Passes in half precision, where they do what those in float32 do; and whether they do.

    Args:
        engine: Makes passes in the precision that is found, from now on.
        full: Passes over validation inputs in float32.
        remake: Makes them again.
        score: Learns from passes and gives their scores.

    Example:
        >>> import torch, tulip_ood
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3), precision="auto")
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector.fit([(x, y)]).report().facts["precision_because"]
        'half precision is for accelerators'
    """
    parity = Parity(False, "half precision is for accelerators")
    half = full
    try:
        if engine.network.device.type != "cpu":
            engine.settle("half")
            half = remake()
            parity = compare_precisions(full, half, score, engine.network.task.label)
    except RuntimeError as error:
        parity = Parity(False, in_one_line(error))
    finally:
        engine.settle("half" if parity.holds else "float32")
    return half if parity.holds else full, parity


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
