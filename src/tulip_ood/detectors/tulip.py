"""TULiP (Zhang, Wu, Wada, Kanamori, 2025): Alg. 1 on any network."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.ahead import measured_ahead
from tulip_ood.detectors.envelope_fit import (
    FittedEnvelope,
    fit_envelope,
    score_passes,
)
from tulip_ood.detectors.enveloped import needs_of_envelope, predict_enveloped
from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.detectors.recipes import Budget, recipe_named
from tulip_ood.detectors.shaping import make_shaping
from tulip_ood.detectors.tulip_fitting import AUTO, TulipFitting
from tulip_ood.detectors.words import envelope_lines
from tulip_ood.errors import InputError
from tulip_ood.network.initial_mean import InitialMean, initial_mean
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.running import Needs
from tulip_ood.network.scope import LayerScale, Scope, parameter_scales, parameters_in_scope
from tulip_ood.numerics import envelope
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.given import number, samples, truth
from tulip_ood.numerics.tasks import Classification

__all__ = ["Tulip"]

_DRIFTS = ("pass", "norm")


class Tulip(TulipFitting):
    """The uncertainty of a trained network's answers, from small perturbations of its weights.

    How far do the predictions move, less what training has explained, as a calibrated number? No
    retraining, no training data: a trained network and a small labelled validation set.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        score: What is computed from the surrogate posterior: "ent", "msp", "gen", "mls", "ebo",
            or "bound" (S/J² alone).
        n_samples: M, the number of noisy passes; "auto" adds pairs until the ranking of validation
            inputs and pseudo-OOD no longer moves.
        epsilon: ε, the size of the noise; by default the recipe chooses.
        delta: δ; the drift pass moves the weights by εδ of the way from where they began.
        drift: Where the drift D comes from: "pass", as in Alg. 1, or "norm" for D := ‖f(z)‖, which
            saves that pass and ranks about as well (docs/why.md).
        lam: λ, the weight of the drift; by default the recipe chooses.
        j: J, the strength; by default the recipe chooses.
        sqrt_outputs: Multiply the drift by √o, as Alg. 1 does; by default the recipe decides.
        antithetic: Draw noise in pairs (v, −v); by default the recipe decides.
        layer_scale: Γ: globs on parameter names → factors, or a function of the name.
        initial_mean: θ_ts where it is known: numbers or tensors by parameter name, or the state
            dict of an early checkpoint.
        shaping: What is done to penultimate features inside every pass before the score: "react",
            "ash-b", "ash-s", "ash-p" or "scale", with a percentile if you know it ("scale:85").
        scope: Which parameters are perturbed: "all", "head", "last-block", "last-stage", those of
            the last so much of the compute ("last-25%"), or globs on their names; or "auto" for the
            smallest of the named ones that does as well as "all" on pseudo-OOD.
        seed: Decides the noise and the split of the validation data.
        task: "classification", "binary", "multilabel", "regression", or "dense".
        output: Picks the logits out of what the model returns, for instance `lambda o: o[0]`.
        head: The name of the last linear layer, where it cannot be found by itself.
        batch_size: Inputs in one forward pass; by default 64 on a CPU, 256 elsewhere.
        precision: "float32"; "half" on an accelerator; "auto" for half where the first fit shows on
            the validation data that it ranks and answers alike.
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
        n_samples: int | str = 10,
        epsilon: float | None = None,
        delta: float = 8.0,
        drift: str = "pass",
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
        self.n_samples = samples(n_samples)
        self.epsilon, self.lam, self.j = (
            None if value is None else number(name, value)
            for name, value in (("epsilon", epsilon), ("lam", lam), ("j", j))
        )
        self.delta = number("delta", delta)
        for name, value in (("lam", self.lam), ("j", self.j)):
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name} must be finite and not negative, got {value:g}")
        checked = 0.005 if self.epsilon is None else self.epsilon
        PassSettings(checked, self.delta)  # refuses bad values
        if drift not in _DRIFTS:
            raise InputError(f"drift must be one of {', '.join(_DRIFTS)}; got {drift!r}")
        self.drift = drift
        self.sqrt_outputs, self.antithetic = (
            None if value is None else truth(name, value)
            for name, value in (("sqrt_outputs", sqrt_outputs), ("antithetic", antithetic))
        )
        if not isinstance(initial_mean, Mapping | None):
            raise InputError(
                f"initial_mean must be a mapping like {{'fc.weight': 0.5}}, or a state dict, got "
                f"{initial_mean!r}"
            )
        self.layer_scale, self.initial_mean = layer_scale, initial_mean
        if not isinstance(scope, Iterable):
            raise InputError(f"scope must be a name or a list of globs, got {scope!r}")
        self.scope = scope if isinstance(scope, str) else tuple(scope)
        if shaping is not None:
            make_shaping(shaping)  # refuses what it does not know
        self.shaping = shaping
        self.hold = truth("hold", hold)
        # In the user's words: what a file keeps for refitting a changed network alike.
        self._as_given: dict[str, Any] = {
            "n_samples": self.n_samples,
            "scope": self.scope,
            "layer_scale": None if callable(layer_scale) else layer_scale,
            "initial_mean": {n: v for n, v in (initial_mean or {}).items() if not _is_tensor(v)},
        }
        self.budget = Budget()  # of a search; a larger one chooses more steadily
        self._recipe = recipe_named("self")
        self._setting = self._recipe.setting
        self._tuning = None
        self._chosen_scope = self._chosen_samples = None
        self._choices = {}

    @property
    def recipe(self) -> str:
        """The recipe that was fitted by, or will be by default, with its number."""
        return self._recipe.name

    # ------------------------------------------------------------------- passes

    def _settings(self) -> PassSettings:
        pairs = self._recipe.antithetic if self.antithetic is None else self.antithetic
        return PassSettings(
            self._setting.epsilon,
            self.delta,
            self._samples,
            antithetic=pairs,
            seed=self.seed,
            drift=self.drift == "pass",
        )

    def _needs(self) -> Needs:
        return Needs(self._settings(), noisy_features=self._setting.shaping is not None)

    def _needs_to_score(self) -> Needs:
        """J = 0: the envelope has no width, and one pass is enough."""
        idle = self.score_name != "bound" and self._state.j_score == 0.0
        return Needs(self._settings().with_(n_samples=0)) if idle else self._needs()

    def _needs_to_predict(self) -> Needs:
        return needs_of_envelope(self, self._state)

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        scope = self.scope if self.scope != AUTO else self._chosen_scope or "all"
        scales = self._scales_in(scope)
        return Perturbation(self.network, scales, self._means(), settings, hold=self.hold)

    def _scales_in(self, scope: Scope) -> dict[str, float]:
        probe = self.network.known_probe
        names = [n for n, p in self.network.parameters.items() if p.is_floating_point()]
        inside = parameters_in_scope(
            self.network.module, names, scope, probe.calls, probe.head, probe.compute
        )
        if self.scope == AUTO:  # Γ may speak of layers that a smaller scope leaves alone
            everywhere = parameter_scales(names, names, self.layer_scale)
            scales = {name: everywhere[name] for name in inside if name in everywhere}
        else:
            scales = parameter_scales(names, inside, self.layer_scale)
        if not scales:
            raise InputError("nothing is perturbed: scope and layer_scale leave no parameter")
        return scales

    def _trial_perturbation(self, scope: str, settings: PassSettings) -> Perturbation:
        return Perturbation(
            self.network, self._scales_in(scope), self._means(), settings, hold=False
        )

    def _means(self) -> InitialMean:
        return initial_mean(self.network.module, self.network.parameters, self.initial_mean)

    @property
    def _uses_sqrt(self) -> bool:
        return self._recipe.sqrt_outputs if self.sqrt_outputs is None else self.sqrt_outputs

    def _ahead(self, passes: Passes) -> Passes:
        return measured_ahead(passes, self._setting, sqrt_outputs=self._uses_sqrt)

    def _learn(self, passes: Passes) -> FittedEnvelope:
        return fit_envelope(
            passes,
            self.task,
            self._setting,
            sqrt_outputs=self._uses_sqrt,
            # With a thousand classes the search takes a CPU longer than the passes take a GPU.
            device=self.network.device if self.network.device.type == "cuda" else None,
        )

    def _score(self, state: FittedEnvelope, passes: Passes) -> Tensor:
        return score_passes(passes, self.task, self.score_name, state, sqrt_outputs=self._uses_sqrt)

    def _scores_on_device(self) -> bool:
        # The variance of observations is a tensor on the CPU.
        return isinstance(self.task, Classification)

    # ------------------------------------------------------------------ predict

    def _predicted(self, x: Inputs | Passes) -> Prediction:
        state: FittedEnvelope = self._ready()

        def said(passes: Passes) -> tuple[Tensor, ...]:
            return (self._score(state, passes),)

        return predict_enveloped(self, x, state, said, sqrt_outputs=self._uses_sqrt)

    @on_the_cpu()
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
        for name in ("epsilon", "delta", "drift", "lam", "j", "sqrt_outputs", "antithetic"):
            config[name] = getattr(self, name)
        config |= {
            "n_samples": self._samples,
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
