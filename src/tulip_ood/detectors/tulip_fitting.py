"""How TULiP is fitted: ε, λ and J are given or searched, Θ_XX is measured, the result is judged."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import Held, PassCount
from tulip_ood.detectors.envelope_fit import FittedEnvelope, held_out_likelihood
from tulip_ood.detectors.fitting import CROSS_FIT_BELOW
from tulip_ood.detectors.learning import Learned
from tulip_ood.detectors.recipes import Budget, Recipe, Setting, recipe_named
from tulip_ood.detectors.self_tuning import Tuning, tune
from tulip_ood.detectors.steadiness import ALONE, STEADY
from tulip_ood.detectors.tuning import SearchSpace, what_to_search
from tulip_ood.detectors.words import look_at_envelope, tuning_lines
from tulip_ood.errors import InputError
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs
from tulip_ood.numerics.tasks import Regression

__all__ = ["TulipFitting"]


class TulipFitting(Detector):
    """The half of `Tulip` that fits.

    Example:
        >>> import tulip_ood
        >>> issubclass(tulip_ood.Tulip, TulipFitting)
        True
    """

    score_name: str
    n_samples: int
    epsilon: float | None
    lam: float | None
    j: float | None
    shaping: str | None
    budget: Budget
    _state: FittedEnvelope
    _recipe: Recipe
    _setting: Setting
    _tuning: Tuning | None

    @property
    @abstractmethod
    def _uses_sqrt(self) -> bool:
        """Whether the drift is multiplied by √o."""

    @abstractmethod
    def _means(self) -> InitialMean:
        """θ_ts."""

    def fit(
        self,
        data: Iterable[Any] | Passes | Held,
        *,
        recipe: str = "self",
        train: Iterable[Any] | Passes | Learned | None = None,
        tune: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Find Θ_XX, λ and J on labelled in-distribution validation data.

        Args:
            data: A loader of (inputs, labels) batches, read once, or a `Passes` record.
            recipe: "self" (choose ε, λ, J on pseudo-OOD made from the inputs), "balanced"
                (nothing is searched), or "paper" (Alg. 1 to the letter).
            train: Not used: TULiP needs no training data.
            tune: A loader of real OOD validation inputs to search against; or a search space, a
                mapping with some of `epsilon`, `balance`, `lam`, `j`, `j_scaling`, `shaping`,
                `kinds`; or a function that makes pseudo-OOD from inputs. What the constructor was
                given is never searched.
            progress: Called with (inputs done, inputs in all), counted over all passes.
        """
        draft = self._draft()
        draft._recipe = recipe_named(recipe)
        draft._tuning = None
        draft._setting = draft._with_given(draft._recipe.setting)
        draft._fit(data, None, tune, progress)
        return self._publish(draft)

    def _with_given(self, setting: Setting) -> Setting:
        return setting.with_given(self.epsilon, self.lam, self.j, self.shaping)

    def _to_search(self, tune: Any) -> tuple[SearchSpace | None, Iterable[Any] | None]:
        return what_to_search(
            self._recipe,
            None if tune == "pseudo" else tune,
            epsilon=self.epsilon,
            lam=self.lam,
            j=self.j,
            shaping=self.shaping,
        )

    def _fit_needs(self, tune: Any) -> Needs:
        return self._needs()

    def _take_passes(self, passes: Passes, tune: Any) -> None:
        if self._to_search(tune)[0] is not None:
            raise InputError(
                "searching makes further passes, which needs the inputs: pass a loader, or use "
                "recipe='balanced'"
            )
        self._setting = replace(self._setting, epsilon=passes.settings.epsilon)
        self._needs().check(passes)
        self.engine.check_origin(passes)
        if passes.drift is None:
            raise InputError("these passes have no drift pass, which TULiP needs")

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        space, ood = self._to_search(tune)
        if space is not None:
            self._setting = self._search(rows, space, ood, count)

    def _search(
        self, rows: Rows, space: SearchSpace, ood: Iterable[Any] | None, count: PassCount
    ) -> Setting:
        # Well within the half that is learned from, also when some rows turn out not to be usable.
        learned_from = len(rows) if len(rows) < CROSS_FIT_BELOW else 2 * len(rows) // 5
        held_ood = ood if isinstance(ood, Rows) else None
        if ood is not None and held_ood is None:
            held_ood = collect_rows(
                ood,
                seed=self.seed,
                memory=self.fit_memory,
                labelled=False,
                limit=self.budget.ood_inputs,
            )
        settings = self._settings()
        if len(space.epsilon) > 1:  # a single ε can afford all samples
            settings = settings.with_(n_samples=min(self.budget.samples, self.n_samples))
        perturbation = self._make_perturbation(settings)
        perturbation.hold = False
        fallback = self._with_given(recipe_named("balanced").setting)
        if isinstance(self.task, Regression):
            fallback = replace(fallback, balance=0.0)  # see the finding "regression-drift"
        self._tuning = tune(
            perturbation,
            rows.take(range(learned_from)),
            self.score_name,
            space,
            fallback,
            by=self._recipe.searches or "auroc",
            budget=self.budget,
            sqrt_outputs=self._uses_sqrt,
            batch_size=self.engine.batch_size,
            seed=self.seed,
            ood=held_ood,
            count=count,
        )
        return self._tuning.setting

    def _finish(
        self,
        passes: Passes,
        rows: Rows | None,
        state: Any = None,
        outside: Mapping[str, Passes] | None = None,
    ) -> None:
        super()._finish(passes, rows, state, outside)
        if rows is not None and self.network.device.type == "cpu":
            self._judge_steadiness(rows)

    def _judge_steadiness(self, rows: Rows) -> None:
        """The same input must have the same score in any batch, to 1e-5 of the range."""
        needs, few = self._needs_to_score(), rows.take(range(min(ALONE, len(rows))))
        if not needs.settings.n_samples:
            return
        together, alone = (
            self._score(self._state, self.engine.passes_of(few, needs, seed=0, batch_size=size))
            for size in (ALONE, 1)
        )
        off = float((together - alone).abs().nan_to_num(0.0).max())
        gap = off / max(self.calibration.spread, 1e-12)
        if gap > STEADY:
            self._find(
                "batch-sensitive",
                f"rounding moves scores by {gap:.1g} of their range when inputs go through the "
                f"network in other batches: J = {self._state.j_score:.3g} at ε = "
                f"{self._setting.epsilon:g} stretches it beyond float32. Use a larger epsilon or a "
                f"smaller j, or give the detector model.double()",
            )

    def _judge(self, passes: Passes) -> None:
        plain, enveloped = held_out_likelihood(
            passes, self.task, self._learn, sqrt_outputs=self._uses_sqrt
        )
        if self._state.j_probs > 0 and enveloped < plain:
            self._state = replace(self._state, j_probs=0.0)
        self._facts |= {
            "recipe": self._recipe.name,
            "tuning": tuning_lines(self._tuning),
            "held_out_nll_plain": -plain,
            "held_out_nll_tulip": -enveloped,
        }
        assert passes.labels is not None
        noisy = [self.task.performance(logits, passes.labels) for logits in passes.noisy]
        self._facts["noisy_performance"] = sum(noisy) / len(noisy)
        chance = self.task.chance(passes.base, passes.labels)
        self._findings += look_at_envelope(
            self._state, self._facts, chance, self._tuning, self._means().guesses, self.score_name
        )
        if isinstance(self.task, Regression) and self._recipe.name == "balanced-1":
            self._find(
                "regression-drift",
                "for regression the drift D grows with the size of the output, which says nothing "
                "about how sure it is: a balanced λ can rank far inputs as sure. Use recipe='self' "
                "or lam=0",
            )
