"""The score of every method that can be exported, as operations that a graph can hold.

The same functions as in the detectors; only what cuts many inputs into blocks is left out, because
a graph has no place for a loop over its own batch. A sum is its own rule over such parts.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.depth import DepthState
from tulip_ood.detectors.envelope_fit import Constants, FittedEnvelope
from tulip_ood.detectors.fdbd import FDBD, FeatureMean
from tulip_ood.detectors.knn import KNN, Bank
from tulip_ood.detectors.mahalanobis import unit
from tulip_ood.detectors.measured import Measured
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.ratio import Ratio, log_ratio
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import envelope

__all__ = ["graph_probs", "graph_score", "heard_parts", "kept_tensors", "reads_features"]


def heard_parts(detector: Detector) -> list[Detector]:
    """A fitted detector, or those parts of a sum that its score comes from.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.make("msp&ebo", torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> [part.name for part in heard_parts(detector)]
        ['msp', 'ebo']
    """
    if not isinstance(detector, Sum):
        return [detector]
    names = detector._heard if isinstance(detector, Auto) else detector._part_names
    named = zip(detector._part_names, detector.parts, strict=True)
    return [heard for name, part in named if name in names for heard in heard_parts(part)]


def reads_features(detector: Detector) -> bool:
    """Whether penultimate features are needed.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.make("msp&knn", torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> reads_features(detector)
        True
    """
    return any(
        isinstance(part, KNN | NCI | FDBD) or getattr(part._state, "shaping", None) is not None
        for part in heard_parts(detector)
    )


def kept_tensors(detector: Detector) -> list[Tensor]:
    """What the score keeps of the validation data: rows to be neighbours of, means, spreads.

    Example:
        >>> import tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.make("knn", torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> [t.shape for t in kept_tensors(detector)]
        [torch.Size([200, 4])]
    """
    states = [part._state for part in heard_parts(detector)]
    kinds = (Bank, DepthState, FeatureMean)
    known = [vars(state).values() for state in states if isinstance(state, kinds)]
    return [value for values in known for value in values if isinstance(value, Tensor)]


def graph_score(detector: Detector, state: Any, passes: Passes) -> Tensor:
    """What `detector._score` gives, [N].

    Args:
        detector: One that can be exported.
        state: What it has learned.
        passes: All that it needs of the inputs.

    Example:
        >>> import tulip_ood
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> model = torch.nn.Linear(4, 3)
        >>> detector = tulip_ood.detectors.make("knn", model).fit([(x, y)])
        >>> base, none = model(x).detach(), torch.zeros(0, 200, 3)
        >>> passes = Passes(base, none, None, x, None, PassSettings(0.01, n_samples=0))
        >>> found = graph_score(detector, detector.fitted, passes)
        >>> torch.allclose(found, detector._score(detector.fitted, passes))
        True
    """
    if isinstance(detector, Sum):
        return _of_graphs(detector)._score(state, passes)
    if isinstance(detector, Ratio):
        return log_ratio(_measured(detector, passes), state.plain.trace_xx)
    if isinstance(detector, Tulip):
        return _tulip(detector, state, passes)
    if isinstance(detector, KNN):
        return _distance(detector, state, passes)
    if isinstance(detector, NCI | FDBD):
        return _of_features(detector, state, passes)
    if isinstance(detector, NoiseAveraging):
        stretch = torch.full((), detector.gamma, dtype=torch.float64)
        samples = envelope.samples(passes.base, passes.noisy, stretch)
        return detector.task.score(detector.score_name, samples)
    return detector._score(state, passes)


def graph_probs(detector: Detector, state: Any, passes: Passes) -> Tensor:
    """The probabilities that go with the answer, [N, o].

    Example:
        >>> import tulip_ood
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> base, none = torch.zeros(1, 3), torch.zeros(0, 1, 3)
        >>> passes = Passes(base, none, None, None, None, PassSettings(0.01, n_samples=0))
        >>> graph_probs(detector, detector.fitted, passes).sum()
        tensor(1., dtype=torch.float64)
    """
    if isinstance(detector, Auto):
        at = detector.parts.index(detector._order)
        detector, state = detector.parts[at], state.parts[at]
    if not isinstance(detector, Tulip):
        return detector._probs(state, passes)
    j = state.j_probs if passes.noisy.shape[0] else 0.0
    return detector.task.predict(_samples(detector, state.plain, j, passes))


class _InGraph:
    """A part of a sum whose score can be put into a graph."""

    def __init__(self, part: Detector) -> None:
        self._part = part

    def _score(self, state: Any, passes: Passes) -> Tensor:
        return graph_score(self._part, state, passes)


def _of_graphs(detector: Sum) -> Sum:
    """The same sum of such parts: how they are centred, scaled and added is its own business."""
    made = copy.copy(detector)
    made.parts = tuple(_InGraph(part) for part in detector.parts)  # type: ignore[misc]
    return made


def _tulip(detector: Tulip, state: FittedEnvelope, passes: Passes) -> Tensor:
    passes, constants = state.shaped(passes), state.scoring
    if detector.score_name == "bound":
        return _measured(detector, passes).bound(constants.trace_xx, constants.lam)
    samples = _samples(detector, constants, state.j_score, passes)
    return detector.task.score(detector.score_name, samples, constants.noise_var)


def _samples(detector: Tulip, constants: Constants, j: float, passes: Passes) -> Tensor:
    """f̃_i, lines 9 to 12; the base pass alone where J is 0."""
    if j == 0.0:
        return passes.base.to(torch.float64).unsqueeze(0)
    stretch = j * _measured(detector, passes).stretch(constants.trace_xx, constants.lam)
    return envelope.samples(passes.base, passes.noisy, stretch)


def _measured(detector: Tulip, passes: Passes) -> Measured:
    """Θ and D, lines 6 and 7."""
    sqrt = detector._uses_sqrt
    return Measured(
        envelope.trace(passes.base, passes.noisy),
        envelope.drift(passes.base, passes.drift, sqrt_outputs=sqrt),
    )


def _known_features(passes: Passes) -> tuple[Tensor, Tensor]:
    """In float64, zeros for rows that are not finite; and which are."""
    features = passes.need_features().to(torch.float64)
    known = features.isfinite().all(dim=1)
    return torch.where(known.unsqueeze(1), features, 0.0), known


def _of_features(detector: NCI | FDBD, state: FeatureMean, passes: Passes) -> Tensor:
    features, known = _known_features(passes)
    return torch.where(known, detector._of_features(state, features, passes), math.inf)


def _distance(detector: KNN, state: Bank, passes: Passes) -> Tensor:
    """To all rows in float64: nothing hangs on which of them float32 would have found near."""
    features, known = _known_features(passes)
    queries = unit(features)
    rows = state.rows.to(torch.float64)
    squares = queries.square().sum(dim=1, keepdim=True) + rows.square().sum(dim=1)
    apart = squares - 2.0 * (queries @ rows.T)
    nearest = apart.topk(state.neighbour(detector.k), dim=1, largest=False).values
    return torch.where(known, nearest.amax(dim=1).clamp_min(0.0), math.inf)
