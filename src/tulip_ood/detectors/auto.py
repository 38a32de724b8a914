"""One detector that needs no tuning and no OOD data: the recipe `auto-1`.

TULiP's own score orders the inputs, as it orders the network's own errors best. What shaped
features and neighbours know of OOD inputs is only listened to where it speaks against an input:

    U = z(TULiP) + strength · max(0, z(TULiP over SCALE) + ½ z(KNN))

with every score centred and scaled on held-out validation data (z). All of it comes from the passes
that TULiP makes anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.compose import Sum, SumState
from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.envelope_fit import judge_passes
from tulip_ood.detectors.shaping import make_shaping
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.network.scope import Scope
from tulip_ood.numerics.tasks import Classification

__all__ = ["Auto"]

ORDER, SHAPED, NEIGHBOURS = "tulip", "tulip+scale", "knn"
NEIGHBOURS_WEIGHT = 0.5
LOOKED_AT = 128  # validation inputs, to see whether features can be shaped


class Auto(Sum):
    """TULiP, TULiP over shaped features, and neighbours, weighed without any OOD data.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        strength: How much evidence against an input counts beside TULiP's own score; 0 is TULiP.
        n_samples: M, the number of noisy passes.
        scope: Which parameters are perturbed, as in `Tulip`.
        parts: Which of the three scores take part; "tulip" always does. Where a network's
            penultimate features cannot be found, or the task is not classification, it is alone.
        settings: For each part, arguments of its own, by name.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(),
        ...                             torch.nn.Linear(32, 3))
        >>> x = torch.randn(400, 4)
        >>> detector = tulip_ood.Auto(model).fit([(x, model(2 * x).argmax(1))])
        >>> detector.predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    name: ClassVar[str] = "auto"
    recipe: ClassVar[str] = "auto-1"
    shares_noise: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        strength: float = 1.0,
        n_samples: int = 10,
        scope: Scope = "all",
        parts: Sequence[str] = (ORDER, SHAPED, NEIGHBOURS),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        if not 0 <= strength < float("inf"):
            raise InputError(f"strength must be finite and not negative, got {strength}")
        unknown = [part for part in parts if part not in (ORDER, SHAPED, NEIGHBOURS)]
        if unknown or ORDER not in parts:
            raise InputError(
                f"the parts of auto are {ORDER} (always), {SHAPED} and {NEIGHBOURS}, got "
                f"{', '.join(parts) or 'none'}"
            )
        task = model.task.name if isinstance(model, Network) else common.get("task")
        if task not in (None, Classification.name):
            parts = (ORDER,)
        given = {name: dict(own) for name, own in (settings or {}).items()}
        for name in (ORDER, SHAPED):
            given.setdefault(name, {}).setdefault("n_samples", n_samples)
            given[name].setdefault("scope", scope)
        super().__init__(model, parts=parts, settings=given, **common)
        self.name = type(self).name  # type: ignore[misc]
        self.strength, self.n_samples = strength, n_samples

    @property
    def _order(self) -> Tulip:
        part = self.parts[self._part_names.index(ORDER)]
        assert isinstance(part, Tulip)
        return part

    # ----------------------------------------------------------------------- fit

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        """Tune TULiP, then the shaped one at the same ε: their passes are the same."""
        if self.network.known_probe.head is None:
            for name in (SHAPED, NEIGHBOURS):
                self._leave_out(name, "penultimate features are not to be found (see head=…)")
        order = self._order
        self._prepare_part(order, rows, count)
        if SHAPED not in self._part_names:
            return
        shaped = self.parts[self._part_names.index(SHAPED)]
        assert isinstance(shaped, Tulip)
        try:
            self._check_shaping(shaped, rows)
        except ModelError as error:
            self._leave_out(SHAPED, str(error))
            return
        shaped.epsilon = order._setting.epsilon
        shaped._setting = shaped._with_given(shaped._recipe.setting)
        self._prepare_part(shaped, rows, count)

    def _check_shaping(self, shaped: Tulip, rows: Rows) -> None:
        """Refuse features that shaping is not for."""
        few = rows.take(range(min(LOOKED_AT, len(rows))))
        base = Needs(self._settings().with_(n_samples=0))
        features = self.engine.passes_of(few, base, seed=self.seed).need_features()
        assert shaped.shaping is not None
        make_shaping(shaped.shaping).learned(features)

    def _leave_out(self, name: str, reason: str) -> None:
        if name not in self._part_names:
            return
        at = self._part_names.index(name)
        self.parts = self.parts[:at] + self.parts[at + 1 :]
        self._part_names = self._part_names[:at] + self._part_names[at + 1 :]
        self._find(f"without-{name}", f"{name} takes no part in the score: {reason}")

    def _take_passes(self, passes: Passes, tune: Any) -> None:
        raise InputError(
            "auto makes passes of its own while it chooses, which needs the inputs: pass a loader"
        )

    def _judge(self, passes: Passes) -> None:
        """TULiP says what there is to say about the envelope, and whether its width helps."""
        order, at = self._order, self._part_names.index(ORDER)
        order._findings, order._facts = [], dict(self._facts)
        order._judge(passes)
        states = tuple(order._state if i == at else s for i, s in enumerate(self._state.parts))
        self._state = replace(self._state, parts=states)
        self._findings += order._findings
        self._facts |= {**order._facts, "recipe": self.recipe}

    # --------------------------------------------------------------------- score

    def _needs_to_score(self) -> Needs:
        """One pass where no part needs more; otherwise all that any part may look at."""
        needs = super()._needs_to_score()
        return self._needs() if needs.settings.n_samples else needs

    def _combined(self, columns: Sequence[Tensor]) -> Tensor:
        by_name = dict(zip(self._part_names, columns, strict=True))
        order = by_name[ORDER]
        nothing = torch.zeros_like(order)
        evidence = by_name.get(SHAPED, nothing) + NEIGHBOURS_WEIGHT * by_name.get(
            NEIGHBOURS, nothing
        )
        return order + self.strength * evidence.clamp_min(0.0)

    def _probs(self, state: SumState, passes: Passes) -> Tensor:
        order = self._order
        own = state.parts[self._part_names.index(ORDER)]
        return judge_passes(passes, self.task, own, sqrt_outputs=order._uses_sqrt)[0]

    def _report_lines(self) -> list[str]:
        order = self._order
        setting = order._setting
        lines = [
            f"{self.recipe}: TULiP's score, and {self.strength:g} × what "
            f"{' and '.join(n for n in self._part_names if n != ORDER) or 'nothing'} say against "
            f"an input",
            f"ε = {setting.epsilon:g}, J = {self._state.parts[0].j_score:.3g}",
        ]
        for name, part in zip(self._part_names, self.parts, strict=True):
            if isinstance(part, Tulip) and part is not order:
                chosen = part._setting
                lines.append(f"{name}: {chosen.shaping}, J = {part._state.j_score:.3g}")
        return lines

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The parts' names and their arguments, and the strength."""
        config, tensors = super().configuration()
        return {**config, "strength": self.strength, "n_samples": self.n_samples}, tensors
