"""The parts of `Auto`: their names, the arguments of each, and those that a fit leaves out."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from tulip_ood.detectors.auto_words import in_words_of_auto
from tulip_ood.detectors.compose import PartError, Sum, settings_by_part
from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.fitting import Fit
from tulip_ood.detectors.steadiness import look_at_noise
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.scope import Scope

if TYPE_CHECKING:
    from tulip_ood.detectors.base import Detector

__all__ = [
    "ALIGNED",
    "BOUNDARIES",
    "CLIPPED",
    "DEPTH",
    "NEIGHBOURS",
    "ORDER",
    "PARTS",
    "RATIO",
    "PartedSum",
    "chosen_parts",
    "part_settings",
]

ORDER, CLIPPED, NEIGHBOURS, ALIGNED = "tulip", "react", "knn", "nci"
BOUNDARIES, RATIO, DEPTH = "fdbd", "ratio", "depth"
PARTS = (ORDER, CLIPPED, NEIGHBOURS, ALIGNED, BOUNDARIES, RATIO, DEPTH)
# How passes are made. All parts share them, so that only TULiP can be told.
_OF_PASSES = (
    "antithetic",
    "delta",
    "drift",
    "epsilon",
    "hold",
    "initial_mean",
    "layer_scale",
    "n_samples",
    "scope",
)
_TO_FIT_ONLY = 2  # noisy passes that learn what no score asks for


def chosen_parts(parts: Sequence[str], n_samples: int | str = 10) -> tuple[str, ...]:
    """The parts that were asked for, in their usual order; without noise there is no ratio.

    Example:
        >>> chosen_parts(["knn", "tulip"])
        ('tulip', 'knn')
        >>> chosen_parts(["tulip", "ratio"], 0)
        ('tulip',)
        >>> chosen_parts("knn")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: parts must be a list of names, as in parts=['tulip', 'knn']; \
got 'knn'
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise InputError(
            f"parts must be a list of names, as in parts=['{ORDER}', '{NEIGHBOURS}']; got {parts!r}"
        )
    if ORDER not in parts or any(part not in PARTS for part in parts):
        raise InputError(
            f"the parts of auto are {ORDER} (always), {', '.join(PARTS[1:-1])} and {DEPTH}, "
            f"got {', '.join(map(str, parts)) or 'none'}"
        )
    return tuple(part for part in PARTS if part in parts and (n_samples != 0 or part != RATIO))


def part_settings(
    settings: Mapping[str, Mapping[str, Any]] | None, n_samples: int | str, scope: Scope
) -> dict[str, dict[str, Any]]:
    """The arguments of every part, by name; whatever makes passes gets TULiP's.

    Example:
        >>> part_settings({"tulip": {"epsilon": 0.01}}, 4, "all")["ratio"]
        {'n_samples': 4, 'scope': 'all', 'epsilon': 0.01}
        >>> part_settings(None, 0, "all")["tulip"]["j"]  # the network's own answer
        0.0
    """
    given = settings_by_part(settings)
    unknown = [str(name) for name in given if name not in PARTS]
    if unknown:
        raise InputError(
            f"settings are given for {', '.join(unknown)}, which is no part of auto: its parts are "
            f"{', '.join(PARTS)}"
        )
    shared = {"n_samples": _TO_FIT_ONLY if n_samples == 0 else n_samples, "scope": scope}
    shared |= {key: value for key, value in given.get(ORDER, {}).items() if key in _OF_PASSES}
    if own := [key for key in given.get(RATIO, {}) if key in _OF_PASSES]:
        raise InputError(
            f"all parts share TULiP's passes: {RATIO} takes no {', '.join(own)} of its own. "
            f"Give it to {ORDER}, as in settings={{'{ORDER}': {{'{own[0]}': …}}}}"
        )
    for name in (ORDER, RATIO):
        given[name] = {**shared, **given.get(name, {})}
    if n_samples == 0:
        if given[ORDER].get("j"):
            raise InputError(
                f"n_samples=0 makes no noisy passes, so that J is 0: {ORDER} takes no "
                f"j={given[ORDER]['j']:g}. Leave j out, or give n_samples"
            )
        given[ORDER]["j"] = 0.0
    return given


class PartedSum(Sum):
    """A sum around TULiP; a fit may leave parts out, the next one tries them again.

    Args:
        model: As for every detector.
        **common: As for every sum.

    Example:
        >>> import torch, tulip_ood
        >>> isinstance(tulip_ood.Auto(torch.nn.Linear(4, 3)), PartedSum)
        True
    """

    recipe: ClassVar[str]  # a rule's name; another rule gets another

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        self._left_out: dict[str, Detector] = {}  # what the last fit had no use for

    @property
    def _order(self) -> Tulip:
        part = self.parts[self._part_names.index(ORDER)]
        assert isinstance(part, Tulip)
        return part

    @property
    def _depth(self) -> Depth | None:
        return next((part for part in self.parts if isinstance(part, Depth)), None)

    @property
    def _whole(self) -> Self:
        """The same with the parts that the last fit has left out."""
        whole = copy.copy(self)
        every = {**dict(zip(self._part_names, self.parts, strict=True)), **self._left_out}
        whole._part_names = tuple(name for name in PARTS if name in every)
        whole.parts = tuple(every[name] for name in whole._part_names)
        whole._left_out = {}
        return whole

    def _draft(self) -> Self:
        return Sum._draft(self._whole)  # other data, or a changed network, may have use for them

    def _learn_and_calibrate(self, passes: Passes, state: Any) -> Fit:
        try:
            return super()._learn_and_calibrate(passes, state)
        except PartError as error:  # a trial on more inputs than a fold has may not have shown it
            if error.part == ORDER:
                raise
            self._leave_out(error.part, str(error))
            return self._learn_and_calibrate(passes, state)

    def _finish(self, passes: Passes, rows: Rows | None, *more: Any) -> None:
        super()._finish(passes, rows, *more)
        if rows is not None:
            found = look_at_noise(self, rows, self._order._state.j_score)
            self._findings += [in_words_of_auto(finding) for finding in found]

    def _leave_out(self, name: str, reason: str) -> None:
        if name in self._part_names:
            self._drop(name)
            self._find(f"without-{name}", f"{name} takes no part in the score: {reason}")

    def _drop(self, name: str) -> None:
        at = self._part_names.index(name)
        self._left_out = {**self._left_out, name: self.parts[at]}
        self.parts = self.parts[:at] + self.parts[at + 1 :]
        self._part_names = self._part_names[:at] + self._part_names[at + 1 :]

    # ---------------------------------------------------------------------- save

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The arguments of all parts, also of those that were left out."""
        config, tensors = Sum.configuration(self._whole)
        # In the user's words: what a file keeps for refitting a changed network alike.
        given = {name: self._order._as_given[name] for name in ("n_samples", "scope")}
        return {**config, "as_given": given, "rule": self.recipe}, tensors

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The detector that `configuration` described, not fitted yet."""
        if (recipe := config.get("rule", "auto-1")) != cls.recipe:
            raise FileFormatError(
                f"this detector was fitted with the recipe {recipe}, and this version of tulip-ood "
                f"has {cls.recipe}, which scores otherwise: fit it again"
            )
        known = {name: config[name] for name in config if name not in ("as_given", "rule")}
        return super().from_configuration(model, known, tensors, **more)

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Every part's state, and which parts were left out."""
        values, tensors = super().fitted_state()
        return {**values, "left_out": list(self._left_out)}, tensors

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        for name in values["left_out"]:
            self._drop(name)
        super().restore_state(values, tensors)
