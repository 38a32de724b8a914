"""TULiP (Zhang, Wu, Wada, Kanamori, 2025): Alg. 1 on any network."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import Held, PassCount
from tulip_ood.detectors.envelope_fit import (
    FittedEnvelope,
    fit_envelope,
    held_out_likelihood,
    judge_passes,
    measure,
    score_passes,
)
from tulip_ood.detectors.fitting import CROSS_FIT_BELOW
from tulip_ood.detectors.learning import Learned
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.detectors.recipes import Budget, Recipe, Setting, recipe_named
from tulip_ood.detectors.self_tuning import Tuning, tune
from tulip_ood.detectors.shaping import make_shaping
from tulip_ood.detectors.steadiness import ALONE, STEADY
from tulip_ood.detectors.tuning import SearchSpace, what_to_search
from tulip_ood.detectors.words import envelope_lines, look_at_envelope, tuning_lines
from tulip_ood.errors import InputError
from tulip_ood.network.initial_mean import InitialMean, initial_mean
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs
from tulip_ood.network.scope import LayerScale, Scope, parameter_scales, parameters_in_scope
from tulip_ood.numerics import envelope
from tulip_ood.numerics.tasks import Regression

__all__ = ["Tulip"]


class Tulip(Detector):
    """The uncertainty of a trained network's answers, from small perturbations of its weights.

    How far do the predictions move, less what training has explained, as a calibrated number? No
    retraining, no training data: a trained network and a small labelled validation set.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        score: What is computed from the surrogate posterior: "ent", "msp", "gen", "mls", "ebo",
            or "bound" (S/J² alone).
        n_samples: M, the number of noisy passes.
        epsilon: ε, the size of the noise; by default the recipe chooses.
        delta: δ; the drift pass moves the weights by εδ of the way from where they began.
        lam: λ, the weight of the drift; by default the recipe chooses.
        j: J, the strength; by default the recipe chooses.
        sqrt_outputs: Multiply the drift by √o, as Alg. 1 does; by default the recipe decides.
        antithetic: Draw noise in pairs (v, −v); by default the recipe decides.
        layer_scale: Γ: globs on parameter names → factors, or a function of the name.
        initial_mean: θ_ts where it is known: numbers or tensors by parameter name, or the state
            dict of an early checkpoint.
        shaping: What is done to penultimate features inside every pass before the score: "react",
            "ash-b", "ash-s", "ash-p" or "scale", with a percentile if you know it ("scale:85").
        scope: Which parameters are perturbed: "all", "head", "last-block", "last-stage", globs.
        seed: Decides the noise and the split of the validation data.
        task: "classification", "binary", "multilabel", "regression", or "dense".
        output: Picks the logits out of what the model returns, for instance `lambda o: o[0]`.
        head: The name of the last linear layer, where it cannot be found by itself.
        batch_size: Inputs in one forward pass; by default 64 on a CPU, 256 elsewhere.
        precision: "float32", or "half" on an accelerator.
        device: Where passes run; by default where the model's parameters are.
        hold: Keep all perturbed weights in memory (`memory()` says how much that is); otherwise
            they are drawn again whenever they are needed.
        fit_memory: Bytes that validation inputs and their logits may take.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 32), ReLU(), Linear(32, 3))
        >>> x = torch.randn(500, 4)
        >>> y = model(2 * x).argmax(1)  # a stand-in for true labels
        >>> detector = tulip_ood.Tulip(model).fit([(x, y)], recipe="balanced")
        >>> result = detector.predict(x[:2])
        >>> result.score.shape, result.accepted.dtype
        (torch.Size([2]), torch.bool)
    """

    name: ClassVar[str] = "tulip"
    state_class: ClassVar[type] = FittedEnvelope

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        score: str = "ent",
        n_samples: int = 10,
        epsilon: float | None = None,
        delta: float = 8.0,
        lam: float | None = None,
        j: float | None = None,
        sqrt_outputs: bool | None = None,
        antithetic: bool | None = None,
        layer_scale: LayerScale | None = None,
        initial_mean: Mapping[str, float | Tensor] | None = None,
        shaping: str | None = None,
        scope: Scope = "all",
        seed: int = 0,
        task: str = "classification",
        output: Callable[[Any], Tensor] | None = None,
        head: str | None = None,
        batch_size: int | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
        hold: bool = True,
        fit_memory: int = 2 << 30,
    ) -> None:
        super().__init__(
            model,
            task=task,
            output=output,
            head=head,
            seed=seed,
            batch_size=batch_size,
            precision=precision,
            device=device,
            fit_memory=fit_memory,
        )
        self.score_name = self.task.check_score(score)
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        for name, value in (("lam", lam), ("j", j)):
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name} must be finite and not negative, got {value}")
        PassSettings(epsilon if epsilon is not None else 0.005, delta)  # refuses bad values
        self.n_samples = n_samples
        self.epsilon, self.delta, self.lam, self.j = epsilon, delta, lam, j
        self.sqrt_outputs, self.antithetic = sqrt_outputs, antithetic
        self.layer_scale, self.initial_mean = layer_scale, initial_mean
        self.scope = scope if isinstance(scope, str) else tuple(scope)
        if shaping is not None:
            make_shaping(shaping)  # refuses what it does not know
        self.shaping = shaping
        self.hold = hold
        # In the user's words: what a file keeps for refitting a changed network alike.
        self._as_given: dict[str, Any] = {
            "scope": self.scope,
            "layer_scale": None if callable(layer_scale) else layer_scale,
            "initial_mean": {n: v for n, v in (initial_mean or {}).items() if not _is_tensor(v)},
        }
        self.budget = Budget()  # of a search; a larger one chooses more steadily
        self._recipe: Recipe = recipe_named("self")
        self._setting: Setting = self._recipe.setting
        self._tuning: Tuning | None = None

    # ------------------------------------------------------------------- passes

    def _settings(self) -> PassSettings:
        pairs = self._recipe.antithetic if self.antithetic is None else self.antithetic
        return PassSettings(
            self._setting.epsilon, self.delta, self.n_samples, antithetic=pairs, seed=self.seed
        )

    def _needs(self) -> Needs:
        return Needs(self._settings(), noisy_features=self._setting.shaping is not None)

    def _needs_to_score(self) -> Needs:
        """J = 0: the envelope has no width, and one pass is enough."""
        idle = self.score_name != "bound" and self._state.j_score == 0.0
        return Needs(self._settings().with_(n_samples=0)) if idle else self._needs()

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        probe = self.network.known_probe
        names = [n for n, p in self.network.parameters.items() if p.is_floating_point()]
        inside = parameters_in_scope(
            self.network.module, names, self.scope, probe.calls, probe.head
        )
        scales = parameter_scales(names, inside, self.layer_scale)
        if not scales:
            raise InputError("nothing is perturbed: scope and layer_scale leave no parameter")
        return Perturbation(self.network, scales, self._means(), settings, hold=self.hold)

    def _means(self) -> InitialMean:
        return initial_mean(self.network.module, self.network.parameters, self.initial_mean)

    @property
    def _uses_sqrt(self) -> bool:
        return self._recipe.sqrt_outputs if self.sqrt_outputs is None else self.sqrt_outputs

    # ---------------------------------------------------------------------- fit

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

    def _learn(self, passes: Passes) -> FittedEnvelope:
        return fit_envelope(passes, self.task, self._setting, sqrt_outputs=self._uses_sqrt)

    def _score(self, state: FittedEnvelope, passes: Passes) -> Tensor:
        return score_passes(passes, self.task, self.score_name, state, sqrt_outputs=self._uses_sqrt)

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

    # ------------------------------------------------------------------ predict

    def _predicted(self, x: Inputs | Passes) -> Prediction:
        state: FittedEnvelope = self._ready()
        task, sqrt = self.task, self._uses_sqrt
        one_pass = state.j_probs == 0.0 and self._needs_to_score().settings.n_samples == 0

        def judge(passes: Passes) -> tuple[Tensor, ...]:
            judged = judge_passes(passes, task, state, sqrt_outputs=sqrt)
            label, entropy = task.label(passes.base), task.base_uncertainty(passes.base)
            return (self._score(state, passes), label, entropy, *judged)

        needs = self._needs_to_score() if one_pass else self._needs()
        score, label, entropy, probs, bound, stretch, distance, variance = self.engine.over(
            x, needs, judge
        )
        quantities = {
            "entropy": (entropy, self._entropy_reference),
            "stretch": (stretch, None if one_pass else state.stretch_reference),
            "bound": (bound, None if one_pass else state.bound_reference),
            "features": (distance, state.features_reference),
        }
        return self._decide(
            score,
            label,
            probs,
            quantities,
            bound=state.j_score**2 * bound,
            stretch=state.j_score * stretch,
            variance=variance if isinstance(task, Regression) else None,
        )

    def posterior_samples(self, x: Inputs | Passes) -> Tensor:
        """f̃_i: surrogate posterior samples of the outputs at J*, [M, N, …, o], float64.

        Args:
            x: Inputs as the model takes them, or a `Passes` record.
        """
        view = self._view()
        state: FittedEnvelope = view._ready()

        def draw(passes: Passes) -> tuple[Tensor, ...]:
            measured = measure(passes, sqrt_outputs=view._uses_sqrt)
            plain = state.plain
            stretch = plain.j_star * measured.stretch(plain.trace_xx, plain.lam)
            samples = envelope.samples(passes.base, passes.noisy, stretch)
            return measured.trace, samples.movedim(0, 1)

        return view.engine.over(x, view._needs(), draw)[1].movedim(1, 0)

    def _report_lines(self) -> list[str]:
        return envelope_lines(
            self._state,
            self._settings(),
            self._facts,
            means=self._means(),
            held_bytes=self.memory() if self.network.probed else None,
        )

    # --------------------------------------------------------------------- save

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments; scope, Γ and θ_ts as they were found, by name."""
        config, _ = super().configuration()
        found = self._make_perturbation(self._settings())
        for name in ("n_samples", "epsilon", "delta", "lam", "j", "sqrt_outputs", "antithetic"):
            config[name] = getattr(self, name)
        config |= {
            "score": self.score_name,
            "shaping": self.shaping,
            "hold": self.hold,
            "recipe": self._recipe.name,
            "scope": list(found.scales),
            "layer_scale": found.scales,
            "initial_mean": {n: v for n, v in found.means.values.items() if not _is_tensor(v)},
            "as_given": self._as_given,
        }
        tensors = {n: v for n, v in found.means.values.items() if isinstance(v, Tensor)}
        return config, tensors

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The detector that `configuration` described, not fitted yet."""
        config = dict(config)
        recipe = recipe_named(config.pop("recipe"))
        as_given = config.pop("as_given", None)
        config["initial_mean"] = {**config["initial_mean"], **tensors}
        detector = super().from_configuration(model, config, {}, **more)
        detector._recipe = recipe
        if as_given is not None:
            detector._as_given = as_given
        return detector

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        super().restore_state(values, tensors)
        self._setting = self._state.setting


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
