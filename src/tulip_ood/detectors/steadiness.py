"""How far a score moves when inputs are scored alone instead of in a batch: rounding, nothing else.

A small ε makes small differences of logits, and a large J stretches their rounding with them. The
contract is 1e-5 of the range of ID scores; settings are chosen with that in mind.
"""

from collections.abc import Callable, Mapping

from tulip_ood.detectors.tuning import Candidate, scores_of
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.numerics.tasks import Task

__all__ = ["ALONE", "STEADY", "Steadiness", "steadiest_first"]

ALONE = 16  # inputs that are scored both ways
HARDLY_WORSE = 0.005  # of AUROC, given up for scores that do not depend on the batch
STEADY = 5e-6  # of the range of ID scores, on these inputs; 1e-5 is promised for all


class Steadiness:
    """Compares passes made one by one with passes made together.

    Args:
        make: From rows, ε and a batch size to passes.
        rows: ID inputs.
        passes: Passes of ID inputs at each ε.
        task: What the outputs mean.
        score: The score that will be used.
        sqrt_outputs: Whether the drift is multiplied by √o.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.recipes import Setting
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.network.rows import collect_rows
        >>> from tulip_ood.numerics.tasks import make_task
        >>> base, y = torch.eye(3), torch.arange(3)
        >>> passes = Passes(base, base[None] + 1, base, None, y, PassSettings(0.01, n_samples=1))
        >>> rows = collect_rows([(base, y)])
        >>> judge = Steadiness(
        ...     lambda rows, epsilon, size: passes, rows, {0.01: passes},
        ...     make_task("classification"), "ent", False,
        ... )
        >>> judge.gap(Candidate(Setting(0.01), 1.0, {}))
        0.0
    """

    def __init__(
        self,
        make: Callable[[Rows, float, int], Passes],
        rows: Rows,
        passes: Mapping[float, Passes],
        task: Task,
        score: str,
        sqrt_outputs: bool,
    ) -> None:
        self._make, self._passes = make, passes
        self._task, self._score, self._sqrt = task, score, sqrt_outputs
        self._few = rows.take(range(min(ALONE, len(rows))))
        self._pairs: dict[float, tuple[Passes, Passes]] = {}

    def gap(self, candidate: Candidate) -> float:
        """The largest difference, as a share of the range of ID scores."""
        epsilon = candidate.setting.epsilon
        if epsilon not in self._pairs:
            together, alone = (self._make(self._few, epsilon, size) for size in (ALONE, 1))
            self._pairs[epsilon] = (together, alone)
        inside, one, other = scores_of(
            candidate,
            self._passes[epsilon],
            self._pairs[epsilon],
            self._task,
            self._score,
            sqrt_outputs=self._sqrt,
        )
        spread = float(inside.quantile(0.95) - inside.quantile(0.05))
        return float((one - other).abs().nan_to_num(0.0).max()) / max(spread, 1e-12)


def steadiest_first(ranked: list[Candidate], gap: Callable[[Candidate], float]) -> list[Candidate]:
    """The best candidate that is steady comes first, if it is hardly worse than the best of all.

    Example:
        >>> from tulip_ood.detectors.recipes import Setting
        >>> tried = [Candidate(Setting(e), 1.0, {"a": v}) for e, v in ((0.001, 0.9), (0.01, 0.899))]
        >>> steadiest_first(tried, lambda c: 1e-8 / c.setting.epsilon)[0].setting.epsilon
        0.01
    """
    best = _mean(ranked[0])
    for at, candidate in enumerate(ranked):
        if best - _mean(candidate) > HARDLY_WORSE:
            break
        if gap(candidate) <= STEADY:
            return [candidate, *ranked[:at], *ranked[at + 1 :]]
    return ranked


def _mean(candidate: Candidate) -> float:
    return sum(candidate.aurocs.values()) / len(candidate.aurocs)
