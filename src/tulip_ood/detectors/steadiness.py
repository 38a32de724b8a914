"""How far a score moves when inputs are scored alone instead of in a batch: rounding, nothing else.

A small ε makes small differences of logits, and a large J stretches their rounding with them; so
does a Mahalanobis distance where features hardly vary in some direction. The contract is 1e-5 of
the range of ID scores; settings are chosen with that in mind, and what cannot keep it says so.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from tulip_ood.detectors.findings import Finding
from tulip_ood.detectors.tuning import Candidate, scores_of
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.numerics.tasks import Task

if TYPE_CHECKING:
    from tulip_ood.detectors.base import Detector

__all__ = [
    "ALONE",
    "STEADY",
    "Steadiness",
    "look_at_batches",
    "look_at_noise",
    "steadiest_first",
]

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
        return _share(one, other, float(inside.quantile(0.95) - inside.quantile(0.05)))


def look_at_batches(detector: "Detector", rows: Rows, because: str) -> list[Finding]:
    """What there is to say of a fitted detector whose scores hang on the batch.

    The same input must have the same score in any batch, to 1e-5 of the range.

    Args:
        detector: A fitted one.
        rows: ID inputs.
        because: What stretches the rounding, and what to do about it.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.network.rows import collect_rows
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.KNN(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> look_at_batches(detector, collect_rows([(x, y)]), "…")  # nothing is stretched
        []
    """
    if detector.network.device.type != "cpu":
        return []
    needs, few = detector._needs_to_score(), rows.take(range(min(ALONE, len(rows))))
    together, alone = (
        detector._score(
            detector._state, detector.engine.passes_of(few, needs, seed=0, batch_size=n)
        )
        for n in (ALONE, 1)
    )
    gap = _share(together, alone, detector.calibration.spread)
    if gap <= STEADY:
        return []
    text = (
        f"rounding moves scores by {gap:.1g} of their range when inputs go through the network in "
        f"other batches: {because}, or give the detector model.double()"
    )
    return [Finding("batch-sensitive", text)]


def look_at_noise(detector: "Detector", rows: Rows, j: float) -> list[Finding]:
    """`look_at_batches` where the differences of noisy passes are stretched, if there are any.

    Args:
        detector: A fitted one.
        rows: ID inputs.
        j: The J of its score.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.network.rows import collect_rows
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.KNN(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> look_at_noise(detector, collect_rows([(x, y)]), 0.0)  # no noise
        []
    """
    settings = detector._needs_to_score().settings
    if not settings.n_samples:
        return []
    because = f"ε = {settings.epsilon:g} stretches it beyond float32. Use a larger epsilon"
    if j:  # without it, what else is told from noise is stretched, as the ratio of Auto
        because = f"J = {j:.3g} at {because} or a smaller j"
    return look_at_batches(detector, rows, because)


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


def _share(one: Tensor, other: Tensor, spread: float) -> float:
    """The largest difference as a share of a range; inputs without a score have none."""
    return float((one - other).abs().nan_to_num(0.0).max()) / max(spread, 1e-12)


def _mean(candidate: Candidate) -> float:
    return sum(candidate.aurocs.values()) / len(candidate.aurocs)
