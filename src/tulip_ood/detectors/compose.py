"""Sums of scores: "tulip&knn" adds what its parts say, each on the scale of the validation data."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.fitting import Fit, cross_fit, learn_and_calibrate, unscored_as_odd
from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.prediction import Reference
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.numerics.quantiles import quantiles

__all__ = ["PartError", "Sum", "SumState", "middle_of", "settings_by_part", "union"]


class PartError(InputError):
    """A part of a sum can learn nothing from these inputs; the others may.

    Args:
        part: Its name.
        reason: In its own words.

    Example:
        >>> PartError("knn", "there are no neighbours").part
        'knn'
    """

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


@dataclass(frozen=True)
class SumState:
    """What a sum has learned.

    Attributes:
        parts: What each part has learned.
        centres: The median of each part's scores on held-out ID data.
        spreads: Half of q84 − q16 of the same.
        references: Quantiles of the same, centred and scaled.

    Example:
        >>> SumState((), (), (), ()).parts
        ()
    """

    parts: tuple[Any, ...]
    centres: tuple[float, ...]
    spreads: tuple[float, ...]
    references: tuple[Reference, ...]


class Sum(Detector):
    """The sum of several detectors' scores, each centred and scaled on held-out ID data first.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        parts: Names of methods, for instance ("tulip", "knn").
        settings: For each part, arguments of its own, by name.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.make("msp&ebo", torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    state_class: ClassVar[type] = SumState
    # Whether parts that perturb the weights are made to do so with the same noise.
    shares_noise: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        parts: Sequence[str],
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        if len(parts) < 2 and not self.shares_noise:
            raise InputError(f"a sum needs at least two parts, got {', '.join(parts) or 'none'}")
        shared = {"seed": self.seed, "fit_memory": self.fit_memory}
        given = settings_by_part(settings)
        if unknown := [str(name) for name in given if name not in parts]:
            raise InputError(
                f"settings are given for {', '.join(unknown)}, which is not among the parts "
                f"{', '.join(parts)}"
            )
        self.parts = tuple(
            self._make_part(name, model=self.network, **shared, **given.get(name, {}))
            for name in parts
        )
        self.name = "&".join(parts)  # type: ignore[misc]
        self._part_names = tuple(parts)
        noisy = sum(part._settings().n_samples > 0 for part in self.parts)
        if noisy > 1 and not self.shares_noise:
            raise InputError(f"{self.name}: only one part of a sum may perturb the weights")
        self.learns_from_data = any(p.learns_from_data for p in self.parts)  # type: ignore[misc]

    def _make_part(self, name: str, **settings: Any) -> Detector:
        from tulip_ood.detectors.registry import make  # it knows of this module

        return make(name, **settings)

    def _noisy(self) -> Detector:
        """The part that perturbs the weights, or the first."""
        return next((p for p in self.parts if p._settings().n_samples), self.parts[0])

    def _settings(self) -> PassSettings:
        return self._noisy()._settings()

    def _needs(self) -> Needs:
        return union([part._needs() for part in self.parts])

    def _draft(self) -> Self:
        draft = super()._draft()
        draft.parts = tuple(part._draft() for part in self.parts)
        draft.engine.serve(draft._make_perturbation)
        return draft

    def _take_passes(self, passes: Passes, tune: Any) -> None:
        for part in self.parts:
            part._take_passes(passes, tune)

    def _needs_to_score(self) -> Needs:
        return union([part._needs_to_score() for part in self.parts])

    def _scores_on_device(self) -> bool:
        return all(part._scores_on_device() for part in self.parts)

    def _reads_scale(self) -> bool:
        return any(part._reads_scale() for part in self.parts)

    def _knows_strangers(self) -> bool:
        return any(part._knows_strangers() for part in self.parts)

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        return self._noisy()._make_perturbation(settings)

    def _prepare(self, rows: Rows, tune: Any, count: PassCount) -> None:
        for part in self.parts:
            self._prepare_part(part, rows, count, tune)

    def _prepare_part(self, part: Detector, rows: Rows, count: PassCount, tune: Any = None) -> None:
        part.engine.inputs = self.engine.inputs
        part._prepare(rows, tune, count)

    def _ahead(self, passes: Passes) -> Passes:
        for part in self.parts:
            passes = part._ahead(passes)
        return passes

    def _learn(self, passes: Passes) -> SumState:
        return self._standardised(passes, [None] * len(self.parts))

    def _learner(self) -> Learner:
        return _SumLearner(self)

    def _learn_and_calibrate(self, passes: Passes, state: Any) -> Fit:
        """Parts that did not learn from training data, and the scale, need validation data."""
        known = [None] * len(self.parts) if state is None else state.parts

        def complete(part: Passes) -> SumState:
            return self._standardised(part, known)

        whole, calibration, taught = learn_and_calibrate(passes, self.task, complete, self._score)
        for part, own in zip(self.parts, whole.parts, strict=True):
            part._state = own
        return whole, calibration, taught

    def _standardised(self, passes: Passes, states: Sequence[Any]) -> SumState:
        """Learn what is not learned yet, and the scale of every part's held-out scores."""
        return self._scaled(*self._held_out(passes, states))

    def _held_out(self, passes: Passes, states: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
        """What parts have learned, and what each says of inputs that it has not learned from."""
        learned, said = [], []
        for name, part, state in zip(self._part_names, self.parts, states, strict=True):
            says = self._asked(name, part)
            try:
                if state is None:
                    state, scores = cross_fit(passes, part._learn, says)
                else:
                    scores = says(state, passes).to(torch.float64)
            except InputError as error:
                raise PartError(name, str(error)) from error
            learned.append(state)
            said.append(scores)
        return learned, said

    def _asked(self, name: str, part: Detector) -> Callable[[Any, Passes], Tensor]:
        """How a part is asked while the scale is looked for."""
        return partial(self._says, part)

    def _scaled(self, learned: Sequence[Any], said: Sequence[Tensor]) -> SumState:
        """The state, given what parts have learned and say of held-out inputs."""
        centres, spreads, references = [], [], []
        for name, scores in zip(self._part_names, said, strict=True):
            centre, spread = self._scale(name, scores)
            centres.append(centre)
            spreads.append(spread)
            references.append(Reference.of((scores - centre) / spread))
        return SumState(tuple(learned), tuple(centres), tuple(spreads), tuple(references))

    @staticmethod
    def _scale(name: str, scores: Tensor) -> tuple[float, float]:
        """Where the middle of a part's held-out scores lies, and how wide they are."""
        try:
            low, middle, high = middle_of(scores, name)
        except InputError as error:
            raise PartError(name, str(error)) from error
        return middle, max((high - low) / 2, 1e-12)

    def _score(self, state: SumState, passes: Passes) -> Tensor:
        columns = [self._column(i, state, passes) for i in range(len(self.parts))]
        total = torch.zeros_like(columns[0], dtype=torch.float64)
        for column in columns:
            total = total + column
        return total

    def _says(self, part: Detector, state: Any, passes: Passes) -> Tensor:
        """What one part says, on its own scale."""
        return unscored_as_odd(part._score(state, passes))

    def _column(self, i: int, state: SumState, passes: Passes) -> Tensor:
        """What one part says, on the scale of the validation data."""
        said = self._says(self.parts[i], state.parts[i], passes)
        return (said - state.centres[i]) / state.spreads[i]

    # --------------------------------------------------------------------- save

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The parts' names and their arguments."""
        config, tensors = super().configuration()
        inner: dict[str, Any] = {}
        for name, part in zip(self._part_names, self.parts, strict=True):
            inner[name], more = part.configuration()
            tensors |= {f"{name}/{key}": value for key, value in more.items()}
        return {**config, "parts": list(self._part_names), "inner": inner}, tensors

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The sum that `configuration` described, not fitted yet."""
        config = dict(config)
        inner = config.pop("inner")
        made = super().from_configuration(model, config, {}, **more)
        rebuilt = []
        for name, part in zip(made._part_names, made.parts, strict=True):
            below = {
                key.removeprefix(f"{name}/"): value
                for key, value in tensors.items()
                if key.startswith(f"{name}/")
            }
            own = {k: v for k, v in inner[name].items() if k not in _OF_THE_NETWORK}
            rebuilt.append(type(part).from_configuration(made.network, own, below))  # type: ignore[arg-type]
        made.parts = tuple(rebuilt)
        return made

    def fitted_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Every part's state under its number."""
        values: dict[str, Any] = {
            "centres": list(self._state.centres),
            "spreads": list(self._state.spreads),
            "parts": [],
        }
        tensors = {"references": torch.stack([r.quantiles for r in self._state.references])}
        for i, part in enumerate(self.parts):
            own, more = part.fitted_state()
            values["parts"].append(own)
            tensors |= {f"{i}.{name}": value for name, value in more.items()}
        return values, tensors

    def restore_state(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take what `fitted_state` gave."""
        for i, part in enumerate(self.parts):
            prefix = f"{i}."
            below = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            part.restore_state(values["parts"][i], below)
        self._state = SumState(
            tuple(part._state for part in self.parts),
            tuple(values["centres"]),
            tuple(values["spreads"]),
            tuple(Reference(quantiles) for quantiles in tensors["references"]),
        )


def settings_by_part(settings: object) -> dict[str, dict[str, Any]]:
    """The arguments that were given for each part, by its name.

    Example:
        >>> settings_by_part(None), settings_by_part({"knn": {"k": 3}})
        ({}, {'knn': {'k': 3}})
        >>> settings_by_part({"knn": 3})
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: settings must hold arguments by name for each part, as in \
settings={'knn': {'k': 3}}; got {'knn': 3}
    """
    given = {} if settings is None else settings
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise InputError(
            f"settings must hold arguments by name for each part, as in settings={{'knn': "
            f"{{'k': 3}}}}; got {settings!r}"
        )
    return {name: dict(own) for name, own in given.items()}


def middle_of(scores: Tensor, name: str) -> list[float]:
    """q16, the median and q84; inputs without a score say nothing about the scale.

    Example:
        >>> middle_of(torch.linspace(0, 100, 101), "msp")
        [16.0, 50.0, 84.0]
    """
    known = scores[scores.isfinite()]
    if not len(known):
        raise InputError(f"{name} gives none of these inputs a finite score: leave it out")
    return quantiles(known, (0.16, 0.5, 0.84))


# What a part shares with the sum, so that it is not given twice.
_OF_THE_NETWORK = ("task", "precision", "head", "output")


class _SumLearner(Learner):
    """Parts that learn from data do so batch by batch; the scale waits for the validation data."""

    def __init__(self, whole: Sum) -> None:
        self._learners = [p._learner() if p.learns_from_data else None for p in whole.parts]

    def add(self, passes: Passes) -> None:
        for learner in self._learners:
            if learner is not None:
                learner.add(passes)

    def finish(self) -> SumState:
        parts = tuple(None if learner is None else learner.finish() for learner in self._learners)
        return SumState(parts, (), (), ())


def union(needs: Sequence[Needs]) -> Needs:
    """What several detectors need together.

    Example:
        >>> one, more = PassSettings(0.01, n_samples=0), PassSettings(0.01, n_samples=4)
        >>> union([Needs(one), Needs(more)]).passes
        6
    """
    noisy = next((n for n in needs if n.settings.n_samples), needs[0])
    measures = {measure.key: measure for need in needs for measure in need.measures}
    return dataclasses.replace(
        noisy,
        noisy_features=any(n.noisy_features for n in needs),
        measures=tuple(measures.values()),
    )
