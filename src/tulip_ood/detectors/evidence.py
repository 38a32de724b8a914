"""What scores are worth as evidence against an input, told from changed validation inputs alone.

Pseudo-OOD tells how much a score should count beside entropy; copies that are mildly changed and
still answered rightly tell what it says of inputs that nothing is wrong with.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import middle_of
from tulip_ood.detectors.engine import Engine, PassCount
from tulip_ood.detectors.pseudo import pseudo_sets, shifted_rows
from tulip_ood.detectors.recipes import Budget
from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.numerics.metrics import auroc
from tulip_ood.shifts.kinds import main_tensor
from tulip_ood.shifts.mild import MILD, can_be_mild

__all__ = ["Trial", "Weights", "weight_of"]

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


class Trial:
    """Scores that have learned from one half of the inputs, tried on the other and its copies.

    (A changed copy lies nearest to its own original: neighbours that had learned from the original
    would look worse than they are.)

    Args:
        engine: Makes the passes.
        rows: Labelled validation inputs.
        needs: What the passes must hold.
        scores: Detectors that are ready to learn, by name.
        seed: Decides what is random in the changes.
        count: Told of the passes that are made.
        says: What a detector says of passes, given what it has learned; its score by default.

    Attributes:
        refused: Why some of them could not learn, by name; nothing is said of them.

    Example:
        >>> import tulip_ood
        >>> from tulip_ood.detectors import GEN
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> detector, y = GEN(model), (model(x) + torch.randn(200, 3)).argmax(1)
        >>> engine, needs = detector.engine, detector._needs()
        >>> rows = engine.collect([(x, y)], needs, seed=0, memory=1 << 20)
        >>> trial = Trial(engine, rows, needs, {"gen": detector}, seed=0)
        >>> weights, said = trial.weights()
        >>> 0 <= weights["gen"] <= 1, sorted(said)
        (True, ['entropy', 'gen', 'kinds'])
    """

    def __init__(
        self,
        engine: Engine,
        rows: Rows,
        needs: Needs,
        scores: Mapping[str, Detector],
        *,
        seed: int,
        count: PassCount | None = None,
        says: Callable[[Detector, Any, Passes], Tensor] | None = None,
    ) -> None:
        self._engine, self._seed = engine, seed
        half = len(rows) // 2
        # A dozen changed copies of every input would cost more than all the rest of a fit.
        self._budget = replace(Budget(), kind_inputs=min(Budget().kind_inputs, (half + 1) // 2))
        samples = min(self._budget.samples, needs.settings.n_samples)
        self._needs = replace(needs, settings=needs.settings.with_(n_samples=samples))
        self._progress = count.add if count is not None else None
        self._says = says or (lambda detector, state, passes: detector._score(state, passes))
        self._judged = rows.take(range(half))
        clean = self._some(self._judged)
        self._clean, self._inside = clean.base_alone(), clean.only_finite()
        learned = self._some(rows.take(range(half, len(rows)))).only_finite()
        self._states: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        for name, score in scores.items():
            try:
                self._states[name] = score._learn(learned)
            except InputError as error:  # features that are all zero have no neighbours
                self.refused[name] = str(error)
        self._scores = {name: scores[name] for name in self._states}

    def _some(self, rows: Rows) -> Passes:
        some = rows.take(range(min(self._budget.id_inputs, len(rows))))
        return self._passes(some)

    def _passes(self, rows: Rows) -> Passes:
        made = self._engine.passes_of(rows, self._needs, seed=self._seed, progress=self._progress)
        assert made.labels is not None
        labels = self._engine.network.task.check_labels(made.labels, made.base)
        return replace(made, labels=labels)

    def _said(self, name: str, passes: Passes) -> Tensor:
        return self._says(self._scores[name], self._states[name], passes)

    @cached_property
    def _said_inside(self) -> dict[str, Tensor]:
        """What every score says of the held-out half, which all else is compared with."""
        return {name: self._said(name, self._inside) for name in self._scores}

    # ------------------------------------------------------------------- pseudo-OOD

    def weights(
        self, nothing_below: Mapping[str, float] | None = None
    ) -> tuple[Weights, dict[str, Any]]:
        """How much each score should count, and the mean AUROCs that say so.

        Args:
            nothing_below: For some of the scores, see `weight_of`.

        Returns:
            The weights, all 0 where no kind is left to judge by; and for the report the AUROCs.
        """
        try:
            kinds = pseudo_sets(
                self._engine,
                self._judged,
                self._needs,
                seed=self._seed,
                progress=self._progress,
                clean=self._clean,
                budget=self._budget,
            )
        except InputError:
            return dict.fromkeys(self._scores, 0.0), {"kinds": []}

        def found(own: Tensor, score: Callable[[Passes], Tensor]) -> float:
            each = [auroc(own, score(outside)) for outside in kinds.values()]
            return sum(each) / len(each)

        task = self._engine.network.task
        said: dict[str, Any] = {"kinds": sorted(kinds)}
        entropy = task.base_uncertainty
        said["entropy"] = found(entropy(self._inside.base), lambda passes: entropy(passes.base))
        for name, own in self._said_inside.items():
            said[name] = found(own, partial(self._said, name))
        limits = dict.fromkeys(self._scores, NOTHING_BELOW) | dict(nothing_below or {})
        return {n: weight_of(said[n], said["entropy"], limits[n]) for n in self._scores}, said

    # ----------------------------------------------------------------- mild changes

    def of_mild_changes(self) -> dict[str, Tensor]:
        """What every score says of mildly changed copies that are still answered rightly.

        Centred and scaled on the held-out half; empty where inputs are not images, or no copy is
        answered rightly.
        """
        first = self._judged.inputs[0]
        place = main_tensor(first)
        if not can_be_mild(first if place is None else first[place]):
            return {}
        some = self._judged.take(range(min(self._budget.kind_inputs, len(self._judged))))
        made = [self._rightly_answered(shifted_rows(some, kind, self._seed)) for kind in MILD]
        if not sum(map(len, made)):
            return {}
        found = {}
        for name in self._scores:
            low, middle, high = middle_of(self._said_inside[name], name)
            said = torch.cat([self._said(name, passes) for passes in made if len(passes)])
            found[name] = (said - middle) / max((high - low) / 2, 1e-12)
        return found

    def _rightly_answered(self, rows: Rows) -> Passes:
        passes = self._passes(rows).only_finite()
        assert passes.labels is not None
        right = self._engine.network.task.correct(passes.base, passes.labels) > 0.5
        return passes.take(right.nonzero().squeeze(1))
