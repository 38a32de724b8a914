"""What a fitted detector answers: scores, predictions, thresholds, its report."""

import copy
import math
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from tulip_ood.detectors.decision import (
    Calibration,
    Threshold,
    control_error_rate,
    control_false_alarms,
)
from tulip_ood.detectors.engine import Engine
from tulip_ood.detectors.findings import Finding
from tulip_ood.detectors.prediction import Prediction, Reasons, Reference
from tulip_ood.detectors.reporting import Report
from tulip_ood.errors import InputError, NotFittedError
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.network.running import Needs
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.given import number
from tulip_ood.numerics.scores import SCALED_SCORES
from tulip_ood.numerics.tasks import Regression, Task

__all__ = ["Answering", "need_detector"]

Given = TypeVar("Given")


class Answering(ABC):
    """The half of a detector that is used after fitting.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.set_threshold(false_alarm=0.1).threshold.target
        0.1
    """

    name: ClassVar[str]
    task: Task
    engine: Engine
    _state: Any
    _calibration: Calibration | None
    _threshold: Threshold | None
    _entropy_reference: Reference | None
    _findings: list[Finding]
    _facts: dict[str, Any]
    _lock: threading.RLock

    @abstractmethod
    def _score(self, state: Any, passes: Passes) -> Tensor:
        """The score of every input, float64, high = unsure."""

    @abstractmethod
    def _settings(self) -> PassSettings:
        """Which noisy passes are needed."""

    @abstractmethod
    def _needs_to_score(self) -> Needs:
        """Everything that scoring needs of an input, once fitted."""

    def _needs_to_predict(self) -> Needs:
        """The same for an answer: its probabilities may need more than the score."""
        return self._needs_to_score()

    def _reads_scale(self) -> bool:
        """Whether the score changes when a number is added to all logits of an input."""
        return getattr(self, "score_name", None) in SCALED_SCORES

    def _knows_strangers(self) -> bool:
        """Whether a high score says that the input is unlike the data, however sure the answer."""
        return False

    def _scores_on_device(self) -> bool:
        """Whether `_score` takes passes on an accelerator as they are."""
        return False

    def _probs(self, state: Any, passes: Passes) -> Tensor:
        """The probabilities that go with the answer; the network's own by default."""
        return self._base_probs(passes)

    def _base_probs(self, passes: Passes) -> Tensor:
        return self.task.predict(passes.base.to(torch.float64).unsqueeze(0))

    def _report_lines(self) -> list[str]:
        """Sentences about what this method has learned."""
        return []

    def _ready(self) -> Any:
        """What was learned, after making sure that the model is still the one it was for."""
        if self._state is None:
            raise NotFittedError("this detector is not fitted: call fit(val_loader) first")
        self.engine.check_model()
        return self._state

    def _view(self) -> Self:
        """This detector as it is now: another thread may fit it again in the middle of a call."""
        with self._lock:
            return copy.copy(self)

    # --------------------------------------------------------------------- score

    @on_the_cpu()
    def score(self, x: Inputs | Passes) -> Tensor:
        """How unsure: float64 [N], high = unsure; +inf where there is no score (NaN inputs).

        Args:
            x: Inputs as the model takes them, any number of them, or a `Passes` record.
        """
        return self._view()._scored(x)

    def _scored(self, x: Inputs | Passes) -> Tensor:
        state = self._ready()
        needs = self._needs_to_score()
        return self.engine.over(
            x,
            needs,
            lambda passes: (self._score(state, passes),),
            on_device=self._scores_on_device(),
        )[0]

    @on_the_cpu()
    def predict(self, x: Inputs | Passes) -> Prediction:
        """The answer, its probabilities, score, p-value, and whether to accept it.

        Args:
            x: Inputs as the model takes them, or a `Passes` record.
        """
        return self._view()._predicted(x)

    def _predicted(self, x: Inputs | Passes) -> Prediction:
        state, task = self._ready(), self.task

        def judge(passes: Passes) -> tuple[Tensor, ...]:
            entropy = task.base_uncertainty(passes.base)
            probs = self._probs(state, passes)
            label, base = task.label(passes.base), self._base_probs(passes)
            return self._score(state, passes), label, probs, entropy, base

        score, label, probs, entropy, base = self.engine.over(
            x, self._needs_to_score(), judge, on_device=self._scores_on_device()
        )
        quantities = {"entropy": (entropy, self._entropy_reference)}
        if self._knows_strangers():
            quantities["score"] = (score, Reference.of(self.calibration.scores))
        return self._decide(score, label, probs, quantities, base_probs=base)

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
            shown = None if isinstance(self.task, Regression) else self.task.guesses(probs)
            reason = Reasons(standing, accepted=accepted, valid=score < math.inf, probs=shown)
        p_value = self.calibration.p_values(score)
        return Prediction(label, probs, score, p_value, accepted, reason, **more)

    # ----------------------------------------------------------------- threshold

    @on_the_cpu()
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
            rate = number("false_alarm", false_alarm)
            self._threshold = control_false_alarms(calibration, rate)
        else:
            rate, sure = number("max_error", max_error), number("confidence", confidence)
            self._threshold = control_error_rate(calibration, rate, sure)
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
    def pass_settings(self) -> PassSettings:
        """Which noisy passes are made: ε, δ, M, the seed; M = 0 for the base pass alone."""
        return self._settings()

    @property
    def needs(self) -> Needs:
        """What `predict` needs of an input: its passes, and what else is measured of it."""
        self._ready()
        return self._needs_to_predict()

    @property
    def calibration(self) -> Calibration:
        """The held-out scores that p-values and thresholds come from."""
        if self._calibration is None:
            raise NotFittedError("this detector is not fitted: call fit(val_loader) first")
        return self._calibration

    @on_the_cpu()
    def report(self) -> Report:
        """What was fitted, what is promised, and what looked odd; print it."""
        view = self._view()
        view._ready()
        plain = view.engine.plain_because
        found = [] if plain is None else [Finding("plain-passes", plain)]
        return Report(
            name=view.name,
            facts=dict(view._facts),
            threshold=view._threshold,
            calibration=view.calibration,
            findings=(*view._findings, *found),
            lines=(*view._report_lines(), *view._precision_lines()),
        )

    def _precision_lines(self) -> list[str]:
        if "precision" not in self._facts:
            return []
        return [f"precision: {self._facts['precision']} ({self._facts['precision_because']})"]

    @on_the_cpu()
    def memory(self, inputs: Inputs | None = None) -> int:
        """Bytes that the perturbed weights of this detector take while it scores and predicts.

        Args:
            inputs: A few inputs, to ask before `fit`; afterwards they are not needed.
        """
        if inputs is not None and self._state is None:
            return self.engine.memory(self._settings(), inputs)
        return self.engine.memory(self.needs.settings)


def need_detector(given: Given) -> Given:
    """What was given as a detector, if it is one: a bare network is easily taken for it.

    Example:
        >>> import torch
        >>> need_detector(torch.nn.Linear(4, 3))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: expected a fitted detector, for instance \
tulip_ood.Tulip(model).fit(val_loader); got Linear
    """
    if not isinstance(given, Answering):
        raise InputError(
            f"expected a fitted detector, for instance tulip_ood.Tulip(model).fit(val_loader); "
            f"got {type(given).__name__}"
        )
    return given
