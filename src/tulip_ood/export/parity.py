"""Does the artefact answer as the detector does? Asked before it may appear."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.errors import ModelError
from tulip_ood.export.artefact import Artefact
from tulip_ood.export.header import golden_inputs
from tulip_ood.export.passing import Prepare
from tulip_ood.network import inputs as structures
from tulip_ood.network import loaders
from tulip_ood.network.inputs import Inputs
from tulip_ood.wording import counted

__all__ = ["TOLERANCE", "Parity", "ParityError", "check_parity", "held"]

TOLERANCE = 1e-4  # of the validation scores' range, of probabilities, of the logits' size
SYNTHETIC = 48
CHECKED = 1000  # of the user's own inputs, at most
_SIZES = (1, 7, 64)  # an artefact must not mind how many come together


class ParityError(ModelError):
    """An artefact answers otherwise than its detector; nothing was written.

    Example:
        >>> issubclass(ParityError, ModelError)
        True
    """


@dataclass(frozen=True)
class Parity:
    """How far an artefact is from its detector.

    Attributes:
        n_inputs: How many were compared.
        score: The largest difference of scores, in parts of the validation scores' range.
        probs: The largest difference of probabilities (of the mean, in parts of its size).
        other_decisions: Decisions that differ although the score is not at the threshold.
        other_labels: Labels that differ although the logits are not (nearly) equal.

    Example:
        >>> Parity(1000, 3e-6, 1e-7, 0, 0).holds
        True
    """

    n_inputs: int
    score: float
    probs: float
    other_decisions: int
    other_labels: int

    @property
    def holds(self) -> bool:
        """Whether the artefact may stand for the detector."""
        close = self.score <= TOLERANCE and self.probs <= TOLERANCE
        return close and not self.other_decisions and not self.other_labels

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"scores differ by {self.score:.2g} of their range at most, probabilities by "
            f"{self.probs:.2g} ({self.n_inputs:,} inputs; {TOLERANCE:g} is allowed)"
        )


def held(data: Iterable[Any]) -> list[Any]:
    """As many of the user's batches as are compared, so that they can be read twice.

    Example:
        >>> endless = iter(lambda: torch.zeros(400, 4), None)
        >>> len(held(endless))
        3
    """
    found: list[Any] = []
    rows = 0
    for batch in loaders.batches(data):
        found.append(batch)
        rows += structures.count_rows(structures.inputs_only(batch))
        if rows >= CHECKED:
            break
    return found


def check_parity(
    detector: Detector, artefact: Artefact, prepare: Prepare | None, data: Iterable[Any] | None
) -> Parity:
    """Compare on synthetic inputs and on the user's; refuses where they differ.

    Args:
        detector: Fitted.
        artefact: Made from it.
        prepare: What the artefact does to pixels, or None.
        data: Batches of inputs as the network takes them, with labels or without.

    Example:
        >>> import tempfile, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tulip_ood.export(detector, f"{folder}/msp.pt2")
        ...     artefact = tulip_ood.export.load(f"{folder}/msp.pt2", trust=True)
        >>> check_parity(detector, artefact, None, [x]).n_inputs
        249
    """
    found: Parity | None = None
    for inputs in _inputs(detector, prepare, data):
        one = _compare(detector, artefact, prepare, inputs)
        found = one if found is None else _worse(found, one)
    assert found is not None  # there are always synthetic inputs
    if not found.holds:
        raise ParityError(
            f"nothing is written: the artefact does not answer as the detector does; {found}, "
            f"{counted(found.other_labels, 'label')} and "
            f"{counted(found.other_decisions, 'decision')} differ. A detector with a smaller "
            f"J, or with more validation data, is less sensitive to rounding"
        )
    return found


def _inputs(
    detector: Detector, prepare: Prepare | None, data: Iterable[Any] | None
) -> Iterator[Inputs]:
    """Batches of several sizes; one with an input that cannot be scored."""
    golden = golden_inputs(detector, prepare, SYNTHETIC)
    start = 0
    for size in _SIZES:
        yield structures.take(golden, slice(start, start + size))
        start += size
    floats = any(t.is_floating_point() for _, t in structures.tensors(golden))
    if prepare is None and floats:
        yield structures.map_tensors(_spoilt, structures.take(golden, slice(0, 1)))
    left = CHECKED
    known = [structures.structure(golden)]
    for batch in loaders.batches(data) if data is not None else ():
        inputs = batch if isinstance(batch, Tensor) else structures.inputs_only(batch, known)
        if prepare is not None:
            inputs = prepare(prepare.pixels(inputs))
        for piece in structures.chunks(structures.take(inputs, slice(0, left)), _SIZES[-1]):
            yield piece
            left -= structures.count_rows(piece)
        if left <= 0:
            return


def _spoilt(t: Tensor) -> Tensor:
    if not t.is_floating_point():
        return t
    spoilt = t.clone()
    spoilt.view(-1)[0] = math.nan
    return spoilt


def _compare(
    detector: Detector, artefact: Artefact, prepare: Prepare | None, inputs: Inputs
) -> Parity:
    theirs = detector.predict(inputs)
    given = inputs if prepare is None else prepare.pixels(inputs)
    mine = {name: torch.from_numpy(value) for name, value in artefact(given).items()}
    spread = max(detector.calibration.spread, 1e-12)
    fine = theirs.score < math.inf
    apart = torch.where(fine, (mine["score"] - theirs.score).abs(), 0.0) / spread
    apart = torch.where(fine == (mine["score"] < math.inf), apart, math.inf)
    probs = (mine["probs"].double() - theirs.probs)[fine].abs()
    size = max(1.0, float(theirs.probs[fine].abs().amax()) if bool(fine.any()) else 1.0)
    limit = detector.threshold.value if detector.threshold is not None else math.inf
    far = (theirs.score - limit).abs() > TOLERANCE * spread
    return Parity(
        n_inputs=len(apart),
        score=float(apart.nan_to_num(math.inf).max()),
        probs=float(probs.nan_to_num(math.inf).max()) / size if probs.numel() else 0.0,
        other_decisions=int(((mine["accepted"] != theirs.accepted) & far).sum()),
        other_labels=_other_labels(detector, mine, theirs.label, fine),
    )


def _other_labels(detector: Detector, mine: dict[str, Tensor], label: Tensor, fine: Tensor) -> int:
    if not detector.task.has_errors:  # regression: the answer is the output
        return 0
    logits = mine["logits"].double()
    close = TOLERANCE * logits.abs().amax(dim=-1, keepdim=True)
    if detector.task.name == "classification":
        gap = logits.amax(dim=-1) - logits.gather(1, label.unsqueeze(1)).squeeze(1)
        other = gap > close.squeeze(1)
    else:
        differs = mine["label"].reshape(logits.shape) != label.reshape(logits.shape)
        other = (differs & (logits.abs() > close)).any(dim=-1)
    return int((other & fine).sum())


def _worse(a: Parity, b: Parity) -> Parity:
    return Parity(
        a.n_inputs + b.n_inputs,
        max(a.score, b.score),
        max(a.probs, b.probs),
        a.other_decisions + b.other_decisions,
        a.other_labels + b.other_labels,
    )
