"""How TULiP is fitted: ε, λ and J are given or searched, Θ_XX is measured, the result is judged."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from tulip_ood.detectors.allowance import Plan, within
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import Held, PassCount
from tulip_ood.detectors.envelope_fit import FittedEnvelope, held_out_likelihood
from tulip_ood.detectors.findings import look_at_head
from tulip_ood.detectors.fitting import CROSS_FIT_BELOW
from tulip_ood.detectors.learning import Learned
from tulip_ood.detectors.pseudo import usual_kinds
from tulip_ood.detectors.recipes import Budget, Recipe, Setting, recipe_named
from tulip_ood.detectors.sample_choice import MOST_SAMPLES, choose_samples
from tulip_ood.detectors.scope_choice import SCOPES, ScopeSearch
from tulip_ood.detectors.self_tuning import Tuning, tune
from tulip_ood.detectors.steadiness import look_at_noise
from tulip_ood.detectors.trial_passes import Looked
from tulip_ood.detectors.tuning import Candidate, SearchSpace, what_to_search
from tulip_ood.detectors.words import choice_lines, look_at_envelope, tuning_lines
from tulip_ood.errors import InputError
from tulip_ood.network.compute import compute_shares
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.network.scope import Scope
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.tasks import Regression

__all__ = ["AUTO", "TulipFitting"]

AUTO = "auto"
DEFAULT_SAMPLES = 10


class TulipFitting(Detector):
    """The half of `Tulip` that fits.

    Example:
        >>> import tulip_ood
        >>> issubclass(tulip_ood.Tulip, TulipFitting)
        True
    """

    score_name: str
    n_samples: int | str
    scope: Scope
    epsilon: float | None
    lam: float | None
    j: float | None
    shaping: str | None
    budget: Budget
    _state: FittedEnvelope
    _recipe: Recipe
    _setting: Setting
    _tuning: Tuning | None
    _chosen_scope: str | None
    _chosen_samples: int | None
    _choices: dict[str, Any]  # what was chosen beside ε, λ and J, for the report

    @abstractmethod
    def _scales_in(self, scope: Scope) -> dict[str, float]:
        """Γ by parameter, in some scope."""

    @abstractmethod
    def _trial_perturbation(self, scope: str, settings: PassSettings) -> Perturbation:
        """What a scope does to the network, not held in memory."""

    @property
    def _samples(self) -> int:
        """M; the largest one while it is not chosen yet."""
        if isinstance(self.n_samples, int):
            return self.n_samples
        return self._chosen_samples or MOST_SAMPLES

    @property
    @abstractmethod
    def _uses_sqrt(self) -> bool:
        """Whether the drift is multiplied by √o."""

    @abstractmethod
    def _means(self) -> InitialMean:
        """θ_ts."""

    @on_the_cpu()
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
        draft._forget_choices()
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
        if AUTO in (self.scope, self.n_samples):
            raise InputError(
                "choosing the scope or n_samples makes further passes, which needs the inputs: "
                "pass a loader"
            )
        self._setting = replace(self._setting, epsilon=passes.settings.epsilon)
        self._needs().check(passes)
        self.engine.check_origin(passes)
        if passes.drift is None and self._settings().drift:
            raise InputError("these passes have no drift pass, which TULiP needs")

    def _forget_choices(self) -> None:
        self._chosen_scope = self._chosen_samples = None
        self._choices = {}

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        self._forget_choices()
        space, ood = self._to_search(tune)
        searches = space is not None
        if not searches and AUTO in (self.scope, self.n_samples):
            # The recipe's own setting alone: there must be something to judge by.
            only = {"j_scaling": self._setting.j_scaling}
            space, ood = self._to_search(only)
        if space is None:
            return
        budget, held_ood = self._plan(rows, space, ood)
        tuning = self._search(rows, space, held_ood, budget, count)
        if searches:
            # Not with what it looked at: that are hundreds of images, and passes over them.
            self._tuning, self._setting = replace(tuning, looked=None), tuning.setting
        if AUTO in (self.scope, self.n_samples):
            keeps = self.epsilon is not None or not searches
            keeps = keeps or (isinstance(tune, Mapping) and "epsilon" in tune)
            self._choose_passes(tuning, space, count, keep_epsilon=keeps)

    def _plan(
        self, rows: Rows, space: SearchSpace, ood: Iterable[Any] | None
    ) -> tuple[Budget, Rows | None]:
        """How much may be looked at, and the OOD inputs."""
        held = ood if isinstance(ood, Rows) else None
        if ood is not None and held is None:
            held = self._hold_ood(ood, rows, self.budget.ood_inputs)
        if AUTO not in (self.scope, self.n_samples) or self.budget != Budget():
            return self.budget, held
        kinds = len(usual_kinds(rows) if space.kinds is None else space.kinds)
        scopes = self._scopes() if self.scope == AUTO else ()
        free = self.network.known_probe.head_is_logits
        plan = Plan(
            inputs=len(rows),
            samples=self._samples,
            id_inputs=_learned_from(rows),
            kinds=kinds if held is None else 0,
            ood_inputs=0 if held is None else len(held),
            epsilons=len(space.epsilon),
            scopes=sum(scope != "all" and not (free and scope == "head") for scope in scopes),
            chooses_samples=self.n_samples == AUTO,
        )
        return within(self.budget, plan), held

    def _search(
        self,
        rows: Rows,
        space: SearchSpace,
        ood: Rows | None,
        budget: Budget,
        count: PassCount,
    ) -> Tuning:
        settings = self._settings()
        if len(space.epsilon) > 1 or AUTO in (self.scope, self.n_samples):
            settings = settings.with_(n_samples=min(budget.samples, self._samples))
        # Otherwise a single ε can afford all samples.
        perturbation = self._make_perturbation(settings)
        perturbation.hold = False
        fallback = self._with_given(recipe_named("balanced").setting)
        if isinstance(self.task, Regression):
            fallback = replace(fallback, balance=0.0)  # see the finding "regression-drift"
        return tune(
            perturbation,
            rows.take(range(_learned_from(rows))),
            self.score_name,
            space,
            fallback,
            by=self._recipe.searches or "auroc",
            budget=budget,
            sqrt_outputs=self._uses_sqrt,
            batch_size=self.engine.batch_size,
            seed=self.seed,
            ood=ood,
            count=count,
            features=self.scope == AUTO,
        )

    # ------------------------------------------------------- the scope and M

    def _scopes(self) -> list[str]:
        """The named scopes that this network has, the smallest first, no two of them the same."""
        found: dict[frozenset[str], str] = {}
        for scope in SCOPES:
            with contextlib.suppress(InputError):
                found.setdefault(frozenset(self._scales_in(scope)), scope)
        found[frozenset(self._scales_in("all"))] = "all"
        return list(found.values())

    def _choose_passes(
        self, tuning: Tuning, space: SearchSpace, count: PassCount, *, keep_epsilon: bool
    ) -> None:
        """The scope, then M, where they are to be chosen."""
        spent, looked = tuning.forwards, tuning.looked
        if looked is None or (keep_epsilon and tuning.setting.epsilon != self._setting.epsilon):
            self._chosen_scope, self._chosen_samples = "all", DEFAULT_SAMPLES
            self._find(
                "not-chosen",
                "there was too little to judge by (fewer than three kinds of pseudo-OOD are left, "
                "or ε spoils the network), so the scope and n_samples that were to be chosen are "
                "'all' and 10. Pass tune=… with OOD data or kinds of your own",
            )
            return
        search = ScopeSearch(
            tuning,
            space,
            self.task,
            self.score_name,
            by=self._recipe.searches or "auroc",
            sqrt_outputs=self._uses_sqrt,
            batch_size=self.engine.batch_size,
            seed=self.seed,
            count=count,
            keep_epsilon=keep_epsilon,
        )
        candidate = tuning.ranked[0]
        if self.scope == AUTO:
            settings = looked.inside_passes.settings
            scopes = {scope: self._trial_perturbation(scope, settings) for scope in self._scopes()}
            names = {scope: frozenset(made.scales) for scope, made in scopes.items()}
            shares = compute_shares(self.network, looked.inside.first(1), names)
            choice = search.choose(scopes, shares)
            self._chosen_scope, looked, candidate = choice.scope, choice.looked, choice.candidate
            self._setting = choice.setting
            spent += choice.forwards
            self._choices["scope"] = choice.scope
            self._choices["scopes"] = [trade.to_dict() for trade in choice.trades]
        if self.n_samples == AUTO:
            spent += self._choose_samples(search, looked, candidate)
        self._choices["forwards"] = spent

    def _choose_samples(self, search: ScopeSearch, looked: Looked, candidate: Candidate) -> int:
        idle = candidate.j == 0.0 and self.score_name != "bound"
        self._chosen_samples = DEFAULT_SAMPLES if idle else None
        self._choices["samples"] = []
        if idle:
            return 0
        perturbation = self._make_perturbation(self._settings().with_(n_samples=MOST_SAMPLES))
        perturbation.hold = False
        found = choose_samples(
            search.runner(perturbation),
            looked,
            candidate,
            self.task,
            self.score_name,
            sqrt_outputs=self._uses_sqrt,
        )
        self._chosen_samples = found.n_samples
        self._choices["samples"] = [list(step) for step in found.steps]
        return found.forwards

    def _finish(
        self,
        passes: Passes,
        rows: Rows | None,
        state: Any = None,
        outside: Mapping[str, Passes] | None = None,
    ) -> None:
        super()._finish(passes, rows, state, outside)
        if rows is not None:
            self._findings += look_at_noise(self, rows, self._state.j_score)

    def _judge(self, passes: Passes, taught: Sequence[Any]) -> None:
        plain, enveloped = held_out_likelihood(
            passes, self.task, taught, sqrt_outputs=self._uses_sqrt
        )
        if self._state.j_probs > 0 and enveloped < plain:
            self._state = replace(self._state, j_probs=0.0)
        self._facts |= {
            "recipe": self._recipe.name,
            "tuning": [*tuning_lines(self._tuning), *choice_lines(self._choices, self._settings())],
            "held_out_nll_plain": -plain,
            "held_out_nll_tulip": -enveloped,
            **self._choices,
        }
        assert passes.labels is not None
        noisy = [self.task.performance(logits, passes.labels) for logits in passes.noisy]
        self._facts["noisy_performance"] = sum(noisy) / len(noisy)
        chance = self.task.chance(passes.base, passes.labels)
        self._findings += look_at_envelope(
            self._state, self._facts, chance, self._tuning, self._means().guesses, self.score_name
        )
        if (self._chosen_scope or self.scope) == "head" and self.network.probed:
            self._findings += look_at_head(self.network.known_probe)
        balanced = self._recipe.name == "balanced-1" and self._state.lam > 0
        if isinstance(self.task, Regression) and balanced:
            self._find(
                "regression-drift",
                "for regression the drift D grows with the size of the output, which says nothing "
                "about how sure it is: a balanced λ can rank far inputs as sure. Use recipe='self' "
                "or lam=0",
            )


def _learned_from(rows: Rows) -> int:
    """Well within the half that is learned from, also when some rows turn out not to be usable."""
    return len(rows) if len(rows) < CROSS_FIT_BELOW else 2 * len(rows) // 5
