"""One detector that needs no tuning and no OOD data: the recipe `auto-6`.

TULiP with the balanced λ orders the inputs, as it orders the network's own errors well; where the
network answers mirror images alike, the entropy of the mirror image is averaged with it (T). More
opinions come from the same passes. How the features lie: far from those of validation inputs (K,
neighbours), and not along the weights of the class that is answered (N, NCI), both of the mirror
image too. How near they lie to the boundaries between classes (B, fDBD), the energy of clipped
features (E, ReAct), and the ratio of noise to drift (R). Each of them counts as far as it finds
pseudo-OOD (its worth w). And how unusual the input looks to the inner stages of the network (I).
Opinions only speak against an input, where they say more than of most mildly changed validation
images that are still answered rightly (c):

    U = z_J(T) + strength · (s max(0, w_K z(K) + w_N z(N) − c) + 2 w_B max(0, z(B) − c_B)
                             + 2 w_E max(0, z(E) − c_E) + w_R max(0, z(R) − c_R)
                             + 2 max(0, z(I) − c_I))

with every score centred and scaled on held-out validation data (z). J, s and every c are the usual
ones, quieter where held-out errors of the network show that they would be ordered worse than by
its entropy (`loudness.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from tulip_ood.detectors.auto_parts import (
    ALIGNED,
    BOUNDARIES,
    CLIPPED,
    DEPTH,
    NEIGHBOURS,
    ORDER,
    PARTS,
    RATIO,
    chosen_parts,
    part_settings,
)
from tulip_ood.detectors.auto_voices import JS, OF_FEATURES, VoicedSum
from tulip_ood.detectors.auto_words import auto_lines, in_words_of_auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import SumState, union
from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.enveloped import needs_of_envelope, predict_enveloped
from tulip_ood.detectors.evidence import Trial
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.detectors.ratio import Ratio
from tulip_ood.detectors.recipes import recipe_named
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.network.scope import Scope
from tulip_ood.numerics.given import number, samples
from tulip_ood.numerics.tasks import Classification, Regression

__all__ = ["Auto"]

BOTH_IMAGES = OF_FEATURES  # what speaks of the mirror image too, beside TULiP
SAMPLES = 6  # docs/research.md: 4, 6 and 10 find as much
MAY_LOSE = 0.03  # of the accuracy on validation images, where they are mirrored
MIRRORED = Mirrored()
# What reasons are told from, beside what TULiP knows; by the names that a reason shows.
SHOWN = {NEIGHBOURS: "neighbours", DEPTH: "stages"}


class Auto(VoicedSum):
    """TULiP, and what features, drift and inner stages say beside it.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        strength: How much the other opinions count beside TULiP's own score; 0 is TULiP.
        n_samples: M, the number of noisy passes, or "auto", as in `Tulip`; 0 for none: two passes
            in all, of the image and of its mirror image, and the network's own probabilities.
            Opinions other than TULiP's need little noise: fewer than `Tulip` makes are enough.
        scope: Which parameters are perturbed, as in `Tulip`.
        mirror: Look at the mirror image, too (one more pass), where inputs are images and the
            network is as good on mirrored validation images.
        parts: Which of the seven scores take part; "tulip" always does. Where a network's
            penultimate features or inner stages cannot be found, inputs are not images, or the
            task is not classification, some are left out, and the report says so.
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
    recipe: ClassVar[str] = "auto-6"
    shares_noise: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        strength: float = 1.0,
        n_samples: int | str = SAMPLES,
        scope: Scope = "all",
        mirror: bool = True,
        parts: Sequence[str] = PARTS,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        strength = number("strength", strength)
        if not 0 <= strength < float("inf"):
            raise InputError(f"strength must be finite and not negative, got {strength:g}")
        n_samples = samples(n_samples, least=0)
        chosen = chosen_parts(parts, n_samples)
        given = part_settings(settings, n_samples, scope)
        task = model.task.name if isinstance(model, Network) else common.get("task")
        if task not in (None, Classification.name):
            chosen = (ORDER,)
        if task == Regression.name and n_samples == 0:
            raise InputError("what a regression is sure of, noise tells: n_samples must be above 0")
        own = {name: given[name] for name in chosen if name in given}
        super().__init__(model, parts=chosen, settings=own, **common)
        self.name = type(self).name  # type: ignore[misc]
        # What neighbours are worth is judged on validation data, and so is what they learn from.
        self.learns_from_data = False  # type: ignore[misc]
        self.strength, self.n_samples, self.mirror = strength, n_samples, mirror
        self._mirrors = False  # whether mirror images are looked at

    def _make_part(self, name: str, **settings: Any) -> Detector:
        if name == RATIO:
            return Ratio(**settings)
        if name == DEPTH:
            return Depth(**settings)
        return super()._make_part(name, **settings)

    # ----------------------------------------------------------------------- fit

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        """Give every part its constants, then see what each is worth."""
        if tune is not None:
            self._find("tune-unused", "tune=… was not used: auto chooses nothing on OOD data")
        if not self.strength:  # the others need not even be able to learn
            for name in self._part_names[1:]:
                self._drop(name)
        probe = self.network.known_probe
        if probe.head is None:
            for name in (CLIPPED, *OF_FEATURES, BOUNDARIES):
                self._leave_out(name, "penultimate features are not to be found (see head=…)")
        elif not probe.head_is_logits:  # what features make of the answer hangs on what lies behind
            for name in (CLIPPED, ALIGNED, BOUNDARIES):
                self._leave_out(name, "the last linear layer's output are not the logits")
        recipe, order = recipe_named("balanced"), self._order
        setting = recipe.setting
        if isinstance(self.task, Regression):
            setting = replace(setting, balance=0.0)  # see the finding "regression-drift"
        elif len(self.parts) > 1:
            setting = replace(setting, j=JS[-1])
        for part in self.parts:
            if isinstance(part, Tulip):
                part._recipe, part._setting = recipe, part._with_given(setting)
        self._prepare_part(order, rows, count)
        for part in self.parts:
            if isinstance(part, Ratio):  # the passes are the order's
                part._chosen_scope, part._chosen_samples = order._chosen_scope, order._samples
                part._setting = replace(part._setting, epsilon=order._setting.epsilon)
        self._check_depth(rows, count)
        self._check_mirror(rows, count)
        self._forget_voices()
        others = {n: p for n, p in zip(self._part_names, self.parts, strict=True) if n != ORDER}
        if others:
            self._weigh(
                Trial(
                    self.engine,
                    rows,
                    self._needs(),
                    others,
                    seed=self.seed,
                    count=count,
                    says=self._says,
                )
            )

    def _check_depth(self, rows: Rows, count: PassCount) -> None:
        """Inner stages are looked at where inputs are images and there are such stages."""
        depth = self._depth
        if depth is None:
            return
        fits = MIRRORED.fits(rows.inputs[0])
        if fits:
            with suppress(ModelError):  # there are none
                self._prepare_part(depth, rows, count)
        stages = depth.stages if fits else ()
        self._facts["inner stages"] = [stage.name for stage in stages]
        if not stages:
            self._drop(DEPTH)

    def _check_mirror(self, rows: Rows, count: PassCount) -> None:
        """See whether the network is as good on mirrored validation images."""
        self._mirrors = False
        one_answer = self.task.name == Classification.name  # not one for every position
        if not (self.mirror and self.strength and one_answer and MIRRORED.fits(rows.inputs[0])):
            return
        needs = Needs(self._settings().with_(n_samples=0), measures=(MIRRORED,))
        made = self.engine.passes_of(rows, needs, seed=self.seed, progress=count.add).only_finite()
        assert made.labels is not None
        own, mirrored = (
            float(self.task.correct(logits, made.labels).mean())
            for logits in (made.base, MIRRORED.passes_of(made).base)
        )
        self._mirrors = mirrored >= own - MAY_LOSE
        self._facts["mirrored"] = {"accuracy": own, "mirrored": mirrored, "used": self._mirrors}

    def _take_passes(self, passes: Passes, tune: Any) -> None:
        raise InputError(
            "auto makes passes of its own while it weighs its parts, which needs the inputs: pass "
            "a loader"
        )

    def _judge(self, passes: Passes, taught: Sequence[Any]) -> None:
        """TULiP says what there is to say about the envelope, and whether its width helps."""
        order, at = self._order, self._part_names.index(ORDER)
        order._findings, order._facts = [], dict(self._facts)
        order._judge(passes, [split.parts[at] for split in taught])
        if self.n_samples == 0:
            order._state = replace(order._state, j_probs=0.0)  # nor do probabilities need noise
        states = tuple(order._state if i == at else s for i, s in enumerate(self._state.parts))
        self._state = replace(self._state, parts=states)
        # Otherwise J = 0 is not the whole score; and without noise it is what was asked for.
        alone = self._heard == (ORDER,) and self.n_samples != 0
        told = [f for f in order._findings if alone or f.code != "j-zero"]
        gave_j = order.j is not None
        self._findings += [in_words_of_auto(finding, gave_j=gave_j) for finding in told]
        self._facts |= {**order._facts, "recipe": self.recipe}

    # --------------------------------------------------------------------- score

    @property
    def _heard(self) -> tuple[str, ...]:
        """The parts that count: TULiP, and the others that were found worth it."""
        weights = self._weights if self.strength else {}
        return tuple(n for n in self._part_names if n == ORDER or weights.get(n))

    def _needs(self) -> Needs:
        return self._with_mirror(super()._needs())

    def _needs_to_score(self) -> Needs:
        """What the parts that count need: one pass, if none of them needs more."""
        named = zip(self._part_names, self.parts, strict=True)
        heard = [part._needs_to_score() for name, part in named if name in self._heard]
        return self._with_mirror(union(heard))

    def _needs_to_predict(self) -> Needs:
        return needs_of_envelope(self, self._order._state)

    def _with_mirror(self, needs: Needs) -> Needs:
        if not self._mirrors:
            return needs
        return replace(needs, measures=(*needs.measures, MIRRORED))

    def _says(self, part: Detector, state: Any, passes: Passes) -> Tensor:
        """TULiP and how features lie speak of both images, the others of the image itself."""
        said = super()._says(part, state, passes)
        if not self._mirrors:
            return said
        name = self._part_names[self.parts.index(part)]
        if name == ORDER:
            return (said + self.task.base_uncertainty(MIRRORED.passes_of(passes).base)) / 2
        if name in BOTH_IMAGES:
            return (said + super()._says(part, state, MIRRORED.passes_of(passes))) / 2
        return said

    def _score(self, state: SumState, passes: Passes) -> Tensor:
        return self._put_together(self._said(state, passes))

    def _said(self, state: SumState, passes: Passes) -> dict[str, Tensor]:
        """What every part that counts says, on the scale of held-out data."""
        at = self._part_names.index
        return {name: self._column(at(name), state, passes) for name in self._heard}

    def _predicted(self, x: Inputs | Passes) -> Prediction:
        state: SumState = self._ready()
        at = self._part_names.index
        shown = [name for name in self._heard if name in SHOWN]

        def said(passes: Passes) -> tuple[Tensor, ...]:
            each = self._said(state, passes)
            return (self._put_together(each), *(each[name] for name in shown))

        return predict_enveloped(
            self,
            x,
            state.parts[at(ORDER)],
            said,
            sqrt_outputs=self._order._uses_sqrt,
            references={SHOWN[name]: state.references[at(name)] for name in shown},
        )

    def _report_lines(self) -> list[str]:
        return auto_lines(self)

    # ---------------------------------------------------------------------- save

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The parts' names and their arguments, and the strength."""
        config, tensors = super().configuration()
        samples = self._order._samples
        if self.n_samples == 0:  # TULiP has a few, to be fitted with
            samples = config["as_given"]["n_samples"] = 0
        own = {"strength": self.strength, "n_samples": samples, "mirror": self.mirror}
        return {**config, **own}, tensors

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Every part's state, what each is worth, and whether mirror images are looked at."""
        values, tensors = super().fitted_state()
        own = {"weights": dict(self._weights), "bars": dict(self._bars), "mirrors": self._mirrors}
        return {**values, **own}, tensors

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        super().restore_state(values, tensors)
        self._weights, self._bars = (
            {str(name): float(value) for name, value in values[what].items()}
            for what in ("weights", "bars")
        )
        self._mirrors = bool(values["mirrors"])
