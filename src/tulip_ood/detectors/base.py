"""The one protocol that every detector follows, and all that they share.

A method writes two pure functions: what it learns from the passes of ID inputs (`_learn`), and the
score that follows (`_score`). Holding data back for the threshold, p-values, refusing bad input,
guarding the user's model, saving: all of that is here, once.
"""

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.decision import (
    Calibration,
    Threshold,
    control_error_rate,
    control_false_alarms,
)
from tulip_ood.detectors.engine import Engine, PassCount
from tulip_ood.detectors.findings import Finding, look_at_validation
from tulip_ood.detectors.fitting import learn_and_calibrate, usable
from tulip_ood.detectors.prediction import Prediction, Reasons, Reference
from tulip_ood.detectors.reporting import Report
from tulip_ood.detectors.state import pack, unpack
from tulip_ood.errors import InputError, NotFittedError, TulipWarning
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.numerics.tasks import Regression, make_task

__all__ = ["Detector"]

FALSE_ALARM = 0.05  # the threshold that a fitted detector starts with
FIT_MEMORY = 2 << 30
Progress = Callable[[int, int], None]


class Detector(ABC):
    """Scores inputs by how little the network's answer can be trusted: high = unsure.

    `fit` takes labelled in-distribution validation data and sets a threshold that refuses at most
    5 % of such data. Neither `fit` nor `score` changes the model: not its weights, mode, hooks or
    gradients, also when they are interrupted.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        task: "classification", "binary", "multilabel", "regression", or "dense".
        output: Picks the logits out of what the model returns, for instance `lambda o: o[0]`.
        seed: Decides the noise and the split of the validation data.
        batch_size: Inputs in one forward pass; by default 64 on a CPU, 256 elsewhere.
        precision: "float32", or "half" on an accelerator.
        device: Where passes run; by default where the model's parameters are.
        fit_memory: Bytes that validation inputs and their logits may take.

    Example:
        >>> import torch, tulip_ood
        >>> model = torch.nn.Linear(4, 3)
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.Energy(model).fit([(x, y)])
        >>> detector.score(x).shape
        torch.Size([200])
    """

    name: ClassVar[str]
    state_class: ClassVar[type]  # the frozen dataclass that `_learn` returns

    def __init__(
        self,
        model: nn.Module,
        *,
        task: str = "classification",
        output: Callable[[Any], Tensor] | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
        fit_memory: int = FIT_MEMORY,
    ) -> None:
        self.task = make_task(task)
        self.seed = seed
        self.fit_memory = fit_memory
        self.network = Network(model, self.task, output=output, device=device, precision=precision)
        self.engine = Engine(self.network, self._make_perturbation, batch_size)
        # Where the model and its inputs came from, for a file that outlives this process.
        self.provenance: dict[str, Any] = {"model_spec": None, "preprocess": None, "classes": None}
        self._state: Any = None
        self._calibration: Calibration | None = None
        self._threshold: Threshold | None = None
        self._entropy_reference: Reference | None = None
        self._findings: list[Finding] = []
        self._facts: dict[str, Any] = {}

    # ------------------------------------------------- what a method writes itself

    @abstractmethod
    def _learn(self, passes: Passes) -> Any:
        """What is learned from the passes of ID inputs: a frozen dataclass."""

    @abstractmethod
    def _score(self, state: Any, passes: Passes) -> Tensor:
        """The score of every input, float64, high = unsure."""

    def _settings(self) -> PassSettings:
        """Which passes fitting needs; the base pass alone by default."""
        return PassSettings(epsilon=1.0, n_samples=0, seed=self.seed)

    def _settings_to_score(self) -> PassSettings:
        """Which passes scoring needs, once fitted."""
        return self._settings()

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        return Perturbation(self.network, {}, InitialMean({}, ()), settings)

    def _judge(self, passes: Passes) -> None:  # noqa: B027 – most methods have nothing to add
        """Facts and findings about what was fitted; methods add their own."""

    def _report_lines(self) -> list[str]:
        """Sentences about what this method has learned."""
        return []

    # ----------------------------------------------------------------------- fit

    def fit(self, data: Iterable[Any] | Passes, *, progress: Progress | None = None) -> Self:
        """Learn from labelled in-distribution validation data that training has not seen.

        Args:
            data: A loader of (inputs, labels) batches, read once, or a `Passes` record.
            progress: Called with (inputs done, inputs in all), counted over all passes.
        """
        self._begin()
        if isinstance(data, Passes):
            self._finish(data, None)
            return self
        settings = self._settings()
        rows = self.engine.collect(data, settings, seed=self.seed, memory=self.fit_memory)
        count = PassCount(progress)
        count.expect(len(rows) * settings.n_passes)
        passes = self.engine.passes_of(rows, settings, seed=self.seed, progress=count.add)
        self._finish(passes, rows)
        return self

    def _begin(self) -> None:
        self.engine.take_model()
        self._findings, self._facts = [], {}

    def _finish(self, passes: Passes, rows: Rows | None) -> None:
        """Learn from one part of the passes, calibrate the threshold on the other."""
        passes, bad = usable(passes, self.task, self.seed)
        assert passes.labels is not None
        repeated = 0 if passes.ids is None else len(passes.ids) - len(set(passes.ids))
        self._findings += look_at_validation(
            self.task, passes.base, passes.labels, duplicates=repeated
        )
        self._state, self._calibration = learn_and_calibrate(
            passes, self.task, self._learn, self._score
        )
        self._entropy_reference = Reference.of(self.task.base_uncertainty(passes.base))
        self._facts |= {
            "n_validation": len(passes),
            "n_outputs": passes.base.shape[-1],
            "performance": self.task.performance(passes.base, passes.labels),
        }
        if bad:
            self._find("not-finite", f"{bad} inputs whose logits are NaN or Inf were left out")
        if rows is not None and rows.dropped:
            self._find("dropped", f"{rows.dropped} inputs with NaN or Inf were left out")
        if rows is not None and rows.seen - rows.dropped > len(rows):
            self._find(
                "sampled",
                f"the loader gave {rows.seen} inputs; a seeded sample of {len(rows)} was used, as "
                f"many as {self.fit_memory / 2**30:.1f} GiB hold (fit_memory)",
            )
        self.set_threshold(false_alarm=FALSE_ALARM)
        self._judge(passes)
        for finding in self._findings:
            warnings.warn(str(finding), TulipWarning, stacklevel=3)

    def _find(self, code: str, text: str) -> None:
        self._findings.append(Finding(code, text))

    def _ready(self) -> Any:
        """What was learned, after making sure that the model is still the one it was for."""
        if self._state is None:
            raise NotFittedError("this detector is not fitted: call fit(val_loader) first")
        self.engine.check_model()
        return self._state

    # --------------------------------------------------------------------- score

    def score(self, x: Inputs | Passes) -> Tensor:
        """How unsure: float64 [N], high = unsure; +inf where there is no score (NaN inputs).

        Args:
            x: Inputs as the model takes them, any number of them, or a `Passes` record.
        """
        state = self._ready()
        settings = self._settings_to_score()
        return self.engine.over(x, settings, lambda passes: (self._score(state, passes),))[0]

    def predict(self, x: Inputs | Passes) -> Prediction:
        """The answer, its probabilities, score, p-value, and whether to accept it.

        Args:
            x: Inputs as the model takes them, or a `Passes` record.
        """
        state, task = self._ready(), self.task

        def judge(passes: Passes) -> tuple[Tensor, ...]:
            samples = passes.base.to(torch.float64).unsqueeze(0)
            entropy = task.base_uncertainty(passes.base)
            return (
                self._score(state, passes),
                task.label(passes.base),
                task.predict(samples),
                entropy,
            )

        score, label, probs, entropy = self.engine.over(x, self._settings_to_score(), judge)
        return self._decide(score, label, probs, {"entropy": (entropy, self._entropy_reference)})

    def _decide(
        self,
        score: Tensor,
        label: Tensor,
        probs: Tensor,
        quantities: dict[str, tuple[Tensor, Reference | None]],
        **more: Tensor | None,
    ) -> Prediction:
        """p-values, decisions and reasons; `quantities` are what reasons are told from."""
        if self._threshold is None:
            raise NotFittedError("no threshold is set: call fit(val_loader) first")
        accepted = self._threshold.accepts(score)
        reason: Any = ()
        if score.ndim == 1:
            standing = {
                name: (reference.percentile(values), reference.excess(values))
                for name, (values, reference) in quantities.items()
                if reference is not None
            }
            shown = None if isinstance(self.task, Regression) else probs
            reason = Reasons(standing, accepted=accepted, valid=score < math.inf, probs=shown)
        p_value = self.calibration.p_values(score)
        return Prediction(label, probs, score, p_value, accepted, reason, **more)

    # ----------------------------------------------------------------- threshold

    def set_threshold(
        self,
        *,
        false_alarm: float | None = None,
        max_error: float | None = None,
        confidence: float = 0.95,
    ) -> Self:
        """Choose what is accepted, on data that fitting has not seen.

        Args:
            false_alarm: Refuse at most this share of in-distribution inputs.
            max_error: Accept so many that accepted answers are wrong at most this often.
            confidence: With `max_error`: the probability that the promise is true.

        Raises:
            ThresholdError: If the data cannot give the promise; the message says what it can.
        """
        calibration = self.calibration
        if (false_alarm is None) == (max_error is None):
            raise InputError("give either false_alarm=… or max_error=…")
        if false_alarm is not None:
            self._threshold = control_false_alarms(calibration, false_alarm)
        elif max_error is not None:
            self._threshold = control_error_rate(calibration, max_error, confidence)
        return self

    @property
    def threshold(self) -> Threshold | None:
        """The threshold and its promise, or None before fitting."""
        return self._threshold

    @property
    def fitted(self) -> Any:
        """What was learned: a frozen dataclass of numbers and tensors (`state_class`)."""
        return self._ready()

    @property
    def calibration(self) -> Calibration:
        """The held-out scores that p-values and thresholds come from."""
        if self._calibration is None:
            raise NotFittedError("this detector is not fitted: call fit(val_loader) first")
        return self._calibration

    def report(self) -> Report:
        """What was fitted, what is promised, and what looked odd; print it."""
        self._ready()
        return Report(
            name=self.name,
            facts=dict(self._facts),
            threshold=self._threshold,
            calibration=self.calibration,
            findings=tuple(self._findings),
            lines=tuple(self._report_lines()),
        )

    def memory(self, inputs: Inputs | None = None) -> int:
        """Bytes that the perturbed weights of this detector take while it is in use.

        Args:
            inputs: A few inputs, to ask before `fit`; afterwards they are not needed.
        """
        if inputs is not None and self._state is None:
            return self.engine.memory(self._settings(), inputs)
        self._ready()
        return self.engine.memory(self._settings_to_score())

    # ------------------------------------------------------------- move and save

    def to(self, device: torch.device | str) -> Self:
        """Run passes on another device; what was fitted stays, to rounding."""
        self.engine.move(torch.device(device))
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to one safetensors file, without the model."""
        from tulip_ood.detectors.saving import save  # it knows of every detector

        save(self, path)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, as JSON and tensors, for a detector file."""
        config = {"task": self.task.name, "seed": self.seed, "fit_memory": self.fit_memory}
        config["precision"] = self.network.precision
        config["output"] = self.network.has_output_function
        return config, {}

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The detector that `configuration` described, not fitted yet."""
        return cls(model, **{k: v for k, v in config.items() if k != "output"}, **more)

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was learned, as JSON and tensors, for a detector file."""
        return pack(self._state)

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        self._state = unpack(self.state_class, values, tensors)
