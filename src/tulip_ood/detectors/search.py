"""Choosing a method's parameters against OOD data, real or made, as OpenOOD does."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tulip_ood.detectors.fitting import CROSS_FIT_BELOW, learn_and_calibrate
from tulip_ood.errors import InputError, TulipError, in_one_line
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import metrics

if TYPE_CHECKING:
    from tulip_ood.detectors.base import Detector

__all__ = ["Tried", "best_parameters", "combinations"]


@dataclass(frozen=True)
class Tried:
    """One combination of parameters, and how it did.

    Attributes:
        parameters: By name.
        auroc: The mean over the OOD sets; None if it was skipped.
        reason: Why it was skipped, or "".

    Example:
        >>> Tried({"k": 50}, 0.9, "").auroc
        0.9
    """

    parameters: dict[str, Any]
    auroc: float | None
    reason: str


def combinations(space: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last name varying fastest.

    Example:
        >>> list(combinations({"a": (1, 2), "b": ("x",)}))
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def best_parameters(
    detector: "Detector", passes: Passes, outside: Mapping[str, Passes], state: Any
) -> tuple[dict[str, Any], list[Tried]]:
    """The combination with the highest mean AUROC, the first one on ties; and all that was tried.

    A combination that cannot work here (more dimensions than there are features) or yields scores
    that are not finite is skipped, with the reason.

    Args:
        detector: The method, with its search space.
        passes: Of ID validation inputs, as `usable` returns them.
        outside: Of each OOD set.
        state: What was learned from training data; None to learn from the validation data, of
            which inputs that were not learned from are then scored.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.GEN(torch.nn.Linear(4, 3))
        >>> detector.fit([(x, y)], tune=[5 * torch.randn(50, 4)]).parameters["gamma"] > 0
        True
    """
    tried: list[Tried] = []
    for parameters in combinations(detector.search):
        candidate = detector.with_parameters(parameters)
        try:
            inside, learned = _held_out(candidate, passes, state)
            scores = {name: candidate._score(learned, part) for name, part in outside.items()}
            for found in (inside, *scores.values()):
                if not bool(found.isfinite().all()):
                    raise InputError("scores are not finite")
        except (TulipError, RuntimeError, IndexError) as error:
            tried.append(Tried(parameters, None, in_one_line(error)))
            continue
        aurocs = [metrics.auroc(inside, found) for found in scores.values()]
        tried.append(Tried(parameters, sum(aurocs) / len(aurocs), ""))
    working = [one for one in tried if one.auroc is not None]
    if not working:
        reasons = "; ".join(sorted({one.reason for one in tried}))
        raise InputError(f"none of the {len(tried)} combinations of parameters works: {reasons}")
    best = max(working, key=lambda one: -1.0 if one.auroc is None else one.auroc)
    return best.parameters, tried


def _held_out(candidate: "Detector", passes: Passes, state: Any) -> tuple[Tensor, Any]:
    """Scores of ID inputs that were not learned from, and what scores the OOD inputs."""
    if state is not None:
        return candidate._score(state, passes), state
    part = passes
    if len(passes) >= CROSS_FIT_BELOW:  # the other half is the threshold's
        part = passes.take(slice(0, len(passes) // 2))
    learned, calibration, _ = learn_and_calibrate(
        part, candidate.task, candidate._learn, candidate._score
    )
    return calibration.scores, learned
