"""What a fitted detector says of images: decoded, prepared, scored, and put into words."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tulip_ood.data.decoding import why
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.errors import InputError
from tulip_ood.serving.images import check_header, unreadable
from tulip_ood.wording import counted, json_values

__all__ = ["Judge", "Judged", "class_name", "class_names", "fingerprint"]

TOP = 5  # most probable classes that are shown


@dataclass(frozen=True)
class Judged:
    """What is said of one image.

    Attributes:
        score: High = unsure; +inf if there is none.
        p_value: The share of ID inputs that look at least as odd; 0 without a score.
        accepted: Whether the score is within the threshold.
        answer: All that a client is told, ready for JSON.

    Example:
        >>> Judged(0.1, 0.6, True, {"decision": "accepted"}).accepted
        True
    """

    score: float
    p_value: float
    accepted: bool
    answer: dict[str, Any]


class Judge:
    """A fitted detector that is shown images.

    Args:
        detector: Fitted, for one answer an input (not dense prediction).
        preprocess: How images are prepared; by default as the detector's provenance says.
        classes: What the outputs mean; by default as the detector's provenance says.
        version: What this detector is called in logs; by default its `fingerprint`.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> judge = Judge(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,)))
        >>> judged = judge.judge([np.zeros((2, 2, 1), dtype=np.uint8)])[0]
        >>> judged.answer["decision"] == ("accepted" if judged.accepted else "refused")
        True
    """

    def __init__(
        self,
        detector: Detector,
        *,
        preprocess: Preprocess | None = None,
        classes: Sequence[str] | None = None,
        version: str | None = None,
    ) -> None:
        if detector.task.name == "dense":
            raise InputError(
                "a server answers once for an image, but this detector answers for every position "
                "(task 'dense'): use detector.predict from Python"
            )
        _ = detector.calibration  # refuses one that is not fitted
        known = detector.provenance
        if preprocess is None and known["preprocess"] is not None:
            preprocess = Preprocess.from_json(known["preprocess"])
        if preprocess is None:
            raise InputError(
                "this detector does not say how images are prepared (it was fitted on arrays, or "
                "from Python): pass preprocess=Preprocess(…), or set "
                "detector.provenance['preprocess'] = Preprocess(…).to_json() before saving"
            )
        self.detector = detector
        self.preprocess = preprocess
        self.classes = class_names(detector, classes)
        self.version = fingerprint(detector) if version is None else version

    def pixels(self, content: bytes, limit: int) -> NDArray[np.uint8]:
        """A file's image as the network's preparation leaves it; refuses what cannot be read."""
        check_header(content, limit)
        try:
            return self.preprocess.pixels(content)
        except Exception as error:  # whatever a stranger's file makes of our libraries
            raise unreadable(why(error)) from error

    def judge(self, images: Sequence[NDArray[np.uint8]]) -> list[Judged]:
        """What is said of images of one size."""
        found = self.detector.predict(self.preprocess.normalise(np.stack(images)))
        return self.put(found)

    def put(self, found: Prediction) -> list[Judged]:
        """A prediction in words, one entry an input."""
        shown = self._shown(found)
        columns = zip(
            found.score.tolist(),
            found.p_value.tolist(),
            found.accepted.tolist(),
            found.label.tolist(),
            found.reason,
            shown,
            strict=True,
        )
        out = []
        for score, p_value, accepted, label, reason, more in columns:
            decision = "accepted" if accepted else "refused"
            answer = {"decision": decision, "accepted": accepted, "label": json_values(label)}
            answer["class"] = class_name(self.classes, label)
            answer |= more
            answer |= {"score": score if score < math.inf else None, "p_value": p_value}
            # Guesses are told by name, above.
            words = str(replace(reason, top_labels=(), top_probs=()))
            answer |= {"reason": words, "kind": reason.kind}
            out.append(Judged(score, p_value, accepted, answer))
        return out

    def _shown(self, found: Prediction) -> list[dict[str, Any]]:
        """Probabilities before and after, or mean and variance."""
        task = self.detector.task
        base = found.probs if found.base_probs is None else found.base_probs
        if task.name == "regression":
            spread = found.variance
            return [
                {
                    "probability": None,
                    "top": [],
                    "mean": json_values(found.probs[i].tolist()),
                    "variance": None if spread is None else json_values(spread[i].tolist()),
                }
                for i in range(len(found))
            ]
        before, after = task.guesses(base), task.guesses(found.probs)
        ranked = after.argsort(dim=-1, descending=True, stable=True)[:, :TOP].tolist()
        labels = found.label.tolist()
        return [
            self._probabilities(labels[i], ranked[i], before[i], after[i])
            for i in range(len(found))
        ]

    def _probabilities(
        self, label: Any, ranked: list[int], before: torch.Tensor, after: torch.Tensor
    ) -> dict[str, Any]:
        first, then = json_values(before.tolist()), json_values(after.tolist())
        if isinstance(label, int) and label not in ranked:
            ranked = [*ranked[: TOP - 1], label]  # the answer itself is always shown
        top = [
            {"label": i, "class": class_name(self.classes, i), "before": first[i], "after": then[i]}
            for i in ranked
        ]
        one = None
        if isinstance(label, int):
            one = {"before": first[label], "after": then[label]}
        return {"probability": one, "top": top}


def class_names(detector: Detector, given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of the classes: as given (none for numbers), or as the detector's provenance says.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> class_names(detector, ("ant", "bee"))
        Traceback (most recent call last):
        tulip_ood.errors.InputError: names of 2 classes are given, but the network has 3 outputs
    """
    names = detector.provenance["classes"] if given is None else given
    if given and detector.task.name == "classification" and detector.network.probed:
        outputs = detector.network.known_probe.n_outputs
        if len(given) != outputs:
            raise InputError(
                f"names of {counted(len(given), 'class')} are given, but the network has "
                f"{counted(outputs, 'output')}"
            )
    return None if names is None else tuple(map(str, names))


def class_name(names: Sequence[str] | None, label: Any) -> str | None:
    """The name of a class; None where answers are no classes, or have no names.

    Example:
        >>> class_name(("cat", "dog"), 1), class_name(None, 1), class_name(("cat", "dog"), [0, 1])
        ('dog', None, None)
    """
    if names is None or not isinstance(label, int) or label >= len(names):
        return None
    return names[label]


def fingerprint(detector: Detector) -> str:
    """Twelve characters that are another for other weights, another fit or another method.

    The threshold is no part of it: it may be changed while a server runs.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> msp = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> len(fingerprint(msp)), fingerprint(msp) == fingerprint(msp)
        (12, True)
    """
    state = hashlib.sha256(f"{detector.name}/{detector.task.name}".encode())
    state.update(detector.engine.fingerprint["weights_sha256"].encode())
    state.update(detector.calibration.scores.contiguous().numpy().tobytes())
    return state.hexdigest()[:12]
