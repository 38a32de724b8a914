"""The one protocol that every detector follows, and all that they share.

A method writes two pure functions: what it learns from the passes of ID inputs (`_learn`, or a
`_learner` that takes them batch by batch), and the score that follows (`_score`). Holding data back
for the threshold, p-values, choosing parameters, refusing bad input, guarding the user's model,
saving: all of that is here, once.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.answering import Answering
from tulip_ood.detectors.decision import Calibration
from tulip_ood.detectors.engine import Engine, Held, PassCount
from tulip_ood.detectors.findings import Finding, look_at_validation
from tulip_ood.detectors.fitting import Fit, learn_and_calibrate, unscored_as_odd, usable
from tulip_ood.detectors.learning import HoldAll, Learned, Learner
from tulip_ood.detectors.outside import hold_ood
from tulip_ood.detectors.precision import settle_precision
from tulip_ood.detectors.prediction import Reference
from tulip_ood.detectors.search import Tried, best_parameters, combinations
from tulip_ood.detectors.storing import Storing
from tulip_ood.errors import InputError, warn
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.network.trying import in_our_words
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.given import whole
from tulip_ood.numerics.random import check_seed
from tulip_ood.numerics.tasks import make_task
from tulip_ood.wording import counted

__all__ = ["Detector"]

FALSE_ALARM, FIT_MEMORY = 0.05, 2 << 30  # the first threshold; bytes
OOD_INPUTS = 5000  # of a loader to choose parameters against
Progress = Callable[[int, int], None]


class Detector(Answering, Storing):
    """Scores inputs by how little the network's answer can be trusted: high = unsure.

    `fit` takes labelled in-distribution validation data and sets a threshold that refuses at most
    5 % of such data. Neither `fit` nor `score` changes the model: not its weights, mode, hooks or
    gradients, also when they are interrupted.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        task: "classification", "binary", "multilabel", "regression", or "dense".
        output: Picks the logits out of what the model returns, for instance `lambda o: o[0]`.
        head: The name of the last linear layer, where it cannot be found by itself.
        seed: Decides the noise and the split of the validation data.
        batch_size: Inputs in one forward pass; by default 64 on a CPU, 256 elsewhere.
        precision: "float32"; "half" on an accelerator; "auto" for half where the first fit shows on
            the validation data that it ranks and answers alike.
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
    learns: ClassVar[bool] = True  # whether anything is learned beside the threshold
    learns_from_data: ClassVar[bool] = False  # whether training data may take validation's place
    search: Mapping[str, tuple[Any, ...]] = {}  # parameters, and what is tried for each

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        task: str = "classification",
        output: Callable[[Any], Tensor] | None = None,
        head: str | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
        fit_memory: int = FIT_MEMORY,
    ) -> None:
        self.seed = check_seed(seed)
        self.fit_memory = whole("fit_memory", fit_memory)
        if isinstance(model, Network):  # several detectors may share one
            self.task, self.network = model.task, model
            if model.precision == "auto":  # what suits one of them need not suit another
                model.settle("float32")
        else:
            self.task = make_task(task)
            self.network = Network(
                model, self.task, output=output, head=head, device=device, precision=precision
            )
        self.engine = Engine(self.network, self._make_perturbation, batch_size)
        # Where the model and its inputs came from, for a file that outlives this process.
        known = ("model_spec", "preprocess", "preprocess_sha256", "classes")
        self.provenance: dict[str, Any] = dict.fromkeys(known)
        self._state = self._calibration = self._threshold = self._entropy_reference = None
        self._findings, self._facts = [], {}
        self._given: dict[str, Any] = {}  # parameters as they were before some were chosen
        self._lock = fork_safe_lock()

    # ------------------------------------------------- what a method writes itself

    def _learn(self, passes: Passes) -> Any:
        """What is learned from the passes of ID inputs: a frozen dataclass."""
        learner = self._learner()
        learner.add(passes)
        return learner.finish()

    def _ahead(self, passes: Passes) -> Passes:
        """The passes, knowing what is the same in every fold that is learned from."""
        return passes

    def _learner(self) -> Learner:
        """What learns batch by batch; by default something that holds all and calls `_learn`."""
        return HoldAll(self._learn)

    def _settings(self) -> PassSettings:
        """Which noisy passes are needed; the base pass alone by default."""
        return Needs.base_pass(seed=self.seed).settings

    def _measures(self) -> tuple[Measure, ...]:
        """What else has to be measured of an input."""
        return ()

    def _needs(self) -> Needs:
        """Everything that fitting needs of an input."""
        return Needs(self._settings(), measures=self._measures())

    def _needs_to_score(self) -> Needs:
        """Everything that scoring needs of an input, once fitted."""
        return self._needs()

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        return Perturbation(self.network, {}, InitialMean({}, ()), settings)

    def _judge(self, passes: Passes, taught: Sequence[Any]) -> None:
        """Facts and findings about what was fitted; `taught` is what each of `splits` taught."""

    def _report_lines(self) -> list[str]:
        """Sentences about what this method has learned."""
        shown = ", ".join(f"{name} = {value}" for name, value in self.parameters.items())
        return [f"parameters: {shown}"] if shown else []

    # ---------------------------------------------------------------- parameters

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that can be chosen against OOD data, as they are now."""
        return {name: getattr(self, name) for name in self.search}

    def with_parameters(self, parameters: Mapping[str, Any]) -> Self:
        """The same detector with other parameters; it shares the network."""
        other = copy.copy(self)
        for name, value in parameters.items():
            setattr(other, name, value)
        return other

    # ----------------------------------------------------------------------- fit

    @on_the_cpu()
    def fit(
        self,
        data: Iterable[Any] | Passes | Held,
        *,
        train: Iterable[Any] | Passes | Learned | None = None,
        tune: Any = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from labelled in-distribution validation data that training has not seen.

        Args:
            data: A loader of (inputs, labels) batches, read once, or a `Passes` record.
            train: Training data, or what was `Learned` from it, for methods that learn from data.
            tune: A loader of OOD validation inputs to choose parameters against, passes of such
                by name, or "pseudo" for images made from the validation inputs.
            progress: Called with (inputs done, inputs in all), counted over all passes.
        """
        draft = self._draft()
        draft._fit(data, train, tune, progress)
        return self._publish(draft)

    def _draft(self) -> Self:
        """A copy to fit: nothing is seen of it before it is whole, a failed one leaves no trace."""
        draft = copy.copy(self)
        draft.engine = self.engine.renewed(draft._make_perturbation)
        draft._findings, draft._facts = [], {}
        for name, value in self._given.items():  # not what an earlier fit has chosen
            setattr(draft, name, value)
        draft._given = {}
        draft._state = draft._calibration = draft._threshold = draft._entropy_reference = None
        return draft

    def _publish(self, draft: Self) -> Self:
        """Take what a draft has learned, all at once."""
        with self._lock:
            draft.engine.serve(self._make_perturbation)
            self.__dict__.update(draft.__dict__)
        for finding in self._findings:
            warn(str(finding))
        return self

    def _fit(
        self,
        data: Iterable[Any] | Passes | Held,
        train: Iterable[Any] | Passes | Learned | None,
        tune: Any,
        progress: Progress | None,
    ) -> None:
        self.engine.take_model()
        rows = None
        if isinstance(data, Passes):
            self._take_passes(data, tune)
            passes = data.serving(self._needs().settings)
        else:
            needs = self._fit_needs(tune)
            if isinstance(data, Held):
                held, rows = data, data.rows
                self.engine.look_at(rows)
            else:
                held = None
                rows = self.engine.collect(data, needs, seed=self.seed, memory=self.fit_memory)
            with in_our_words(self.network, rows.inputs[0]):
                passes = self._fit_passes(rows, held, tune, progress)
        outside = self._outside(tune, rows)
        state = None
        if train is not None and self.learns_from_data:
            state = self._learn_stream(train)
        made = [passes]
        del passes  # what is learned from is a copy in another order: nobody holds this one then
        self._finish(made.pop(), rows, state, outside)

    def _fit_passes(
        self, rows: Rows, held: Held | None, tune: Any, progress: Progress | None
    ) -> Passes:
        """Choose what has to be known before, and make the passes to learn from."""
        count = PassCount(progress)
        count.expect(len(rows) * self._fit_needs(tune).passes)
        self._prepare(rows, tune, count)
        needs = self._fit_needs(tune)
        count.expect(len(rows) * needs.passes)
        passes = None if held is None else held.serving(needs)
        if passes is None:
            passes = self.engine.passes_of(rows, needs, seed=self.seed, progress=count.add)
        if self.network.precision == "auto":
            passes = self._settle_precision(passes, rows, needs)
        return passes

    def _settle_precision(self, passes: Passes, rows: Rows, needs: Needs) -> Passes:
        def remake() -> Passes:
            return self.engine.passes_of(rows, needs, seed=self.seed)

        def score(some: Passes) -> Tensor:
            some = self._ahead(some)
            return self._score(self._learn(some), some)

        settled, parity = settle_precision(self.engine, passes, remake, score)
        self._facts |= {"precision": self.network.precision, "precision_because": parity.reason}
        return settled

    def _fit_needs(self, tune: Any) -> Needs:
        """What fitting needs: that of any combination of parameters, if they are to be chosen."""
        if tune is None or not self.search:
            return self._needs()
        measures = {
            measure.key: measure
            for parameters in combinations(self.search)
            for measure in self.with_parameters(parameters)._measures()
        }
        needs = self._needs()
        return Needs(needs.settings, needs.noisy_features, tuple(measures.values()))

    def _take_passes(self, passes: Passes, tune: Any) -> None:
        """Refuse a record that this method cannot be fitted on."""
        self._fit_needs(tune).check(passes)
        self.engine.check_origin(passes)

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        """Choose what has to be known before the passes are made; most methods have nothing to."""

    def _outside(self, tune: Any, rows: Rows | None) -> Mapping[str, Passes]:
        """Passes of OOD inputs to choose parameters against."""
        if tune is None or not self.search:
            return {}
        if isinstance(tune, Mapping):
            return tune
        needs = self._fit_needs(tune)
        if isinstance(tune, str):
            if tune != "pseudo" or rows is None:
                raise InputError(
                    f"tune={tune!r}: pass a loader of OOD inputs, or 'pseudo' (which makes them "
                    f"from inputs, so `data` must be a loader too)"
                )
            from tulip_ood.detectors.pseudo import pseudo_sets  # only where it is asked for

            return pseudo_sets(self.engine, rows, needs, seed=self.seed)
        ood = tune if isinstance(tune, Rows) else self._hold_ood(tune, rows, OOD_INPUTS)
        return {"OOD": self.engine.passes_of(ood, needs, seed=self.seed)}

    def _hold_ood(self, loader: Any, rows: Rows | None, limit: int) -> Rows:
        return hold_ood(self.engine, loader, rows, limit, seed=self.seed, memory=self.fit_memory)

    def _learn_stream(self, train: Iterable[Any] | Passes | Learned) -> Any:
        if isinstance(train, Learned):
            self._facts["n_train"] = train.n
            return train.state
        learner, n = self._learner(), 0
        parts = [train] if isinstance(train, Passes) else self.engine.stream(train, self._needs())
        for part in parts:
            learner.add(part)
            n += len(part)
        self._facts["n_train"] = n
        return learner.finish()

    def _finish(
        self,
        passes: Passes,
        rows: Rows | None,
        state: Any = None,
        outside: Mapping[str, Passes] | None = None,
    ) -> None:
        """Choose parameters, learn from one part of the passes, calibrate on the other."""
        passes, bad = usable(passes, self.task, self.seed)
        passes = self._ahead(passes)
        assert passes.labels is not None
        repeated = 0 if passes.ids is None else len(passes.ids) - len(set(passes.ids))
        self._findings += look_at_validation(
            self.task, passes.base, passes.labels, duplicates=repeated, scale=self._reads_scale()
        )
        if outside and self.search:
            self._choose(*best_parameters(self, passes, outside, state))
        self._state, calibration, taught = self._learn_and_calibrate(passes, state)
        lost = bad + (0 if rows is None else rows.dropped_beside)
        held_out = calibration.n_inputs / len(passes)
        self._calibration = calibration.with_unscorable(round(lost * held_out))
        self._entropy_reference = Reference.of(self.task.base_uncertainty(passes.base))
        self._facts |= {
            "n_validation": len(passes),
            "n_outputs": passes.base.shape[-1],
            "track": "val" if state is None else "train",
            "performance": self.task.performance(passes.base, passes.labels),
            "performance_name": self.task.performance_name,
            "parameters": self.parameters,
        }
        if bad:
            those = f"{counted(bad, 'input')} whose logits are NaN or Inf"
            told = "such inputs are refused, and the threshold counts them so"
            self._find("not-finite", f"nothing was learned from {those}; {told}")
        if rows is not None and rows.dropped:
            self._find("dropped", f"left out: {counted(rows.dropped, 'input')} with NaN or Inf")
        if rows is not None and rows.seen - rows.dropped > len(rows):
            self._find(
                "sampled",
                f"the loader gave {rows.seen} inputs; a seeded sample of {len(rows)} was used, as "
                f"many as {self.fit_memory / 2**30:.1f} GiB hold (fit_memory)",
            )
        self.set_threshold(false_alarm=FALSE_ALARM)
        self._judge(passes, taught)

    def _learn_and_calibrate(self, passes: Passes, state: Any) -> Fit:
        if state is None:
            return learn_and_calibrate(passes, self.task, self._learn, self._score)
        assert passes.labels is not None
        wrong = 1.0 - self.task.correct(passes.base, passes.labels)
        # None of it was learned from: all is held out.
        scores = unscored_as_odd(self._score(state, passes))
        return state, Calibration.of(scores, wrong, ids=passes.ids), []

    def _choose(self, parameters: Mapping[str, Any], tried: list[Tried]) -> None:
        self._given = self.parameters
        for name, value in parameters.items():
            setattr(self, name, value)
        skipped = [one for one in tried if one.auroc is None]
        self._facts["tried"] = len(tried)
        if skipped:
            first = ", ".join(f"{k} = {v}" for k, v in skipped[0].parameters.items())
            self._find(
                "skipped",
                f"{len(skipped)} of {len(tried)} combinations of parameters do not work here and "
                f"were passed over, for instance {first}: {skipped[0].reason}",
            )

    def _find(self, code: str, text: str) -> None:
        self._findings.append(Finding(code, text))
