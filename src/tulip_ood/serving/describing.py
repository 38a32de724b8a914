"""What a server says of its detector: what is fitted, what is promised, how ID scores lie."""

from dataclasses import asdict
from typing import Any

import torch

from tulip_ood.errors import ThresholdError
from tulip_ood.numerics.thresholds import false_alarm_threshold
from tulip_ood.report.scale import Scale, score_scale
from tulip_ood.serving.judging import Judge
from tulip_ood.version import __version__
from tulip_ood.wording import json_values

__all__ = ["describe", "describe_threshold"]

_BINS = 40
# The axis reaches further than validation scores do: odd inputs lie there.
_ROOM, _ROOM_IN_LOGARITHMS = 1.25, 1.1
# False-alarm rates that a threshold is shown for.
_RATES = [i / 1000 for i in (1, 2, 5)] + [i / 100 for i in range(1, 51)]


def describe(judge: Judge) -> dict[str, Any]:
    """Everything but what changes while a server runs; ready for JSON.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.data.preprocess import Preprocess
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> found = describe(Judge(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,))))
        >>> found["method"], found["validation"]["inputs"], sum(found["validation"]["counts"])
        ('msp', 200, 200)
    """
    detector = judge.detector
    report = detector.report()
    facts = report.to_dict()
    del facts["threshold"]  # it may change; `describe_threshold` tells it as it is now
    values = {
        "software": f"tulip-ood {__version__}",
        "method": detector.name,
        "version": judge.version,
        "task": detector.task.name,
        "model_spec": detector.provenance["model_spec"],
        "weights_sha256": detector.engine.fingerprint["weights_sha256"],
        "classes": None if judge.classes is None else list(judge.classes),
        "preprocess": judge.preprocess.to_json(),
        "validation": _validation(judge),
        "report": facts,
        "report_text": str(report),
    }
    found: dict[str, Any] = json_values(values)
    return found


def describe_threshold(judge: Judge) -> dict[str, Any] | None:
    """What is accepted now, with its promise; ready for JSON.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.data.preprocess import Preprocess
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> judge = Judge(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,)))
        >>> describe_threshold(judge)["target"]
        0.05
    """
    threshold = judge.detector.threshold
    return None if threshold is None else json_values(asdict(threshold))


def _validation(judge: Judge) -> dict[str, Any]:
    """The histogram of held-out ID scores, and the threshold for every false-alarm rate."""
    held = judge.detector.calibration
    axis = _axis(score_scale([held.scores], 0.0, 1.0))
    edges = axis.edges(_BINS)
    cuts = torch.tensor(edges[1:-1], dtype=torch.float64)
    counts = torch.bincount(torch.bucketize(held.scores, cuts), minlength=_BINS)
    choices = []
    for rate in _RATES:
        try:
            value = false_alarm_threshold(held.scores, rate)
        except ThresholdError:
            continue  # not from so few inputs
        accepted = (held.scores <= value) & held.scores.isfinite()
        share = float(accepted.to(torch.float64).mean())
        choices.append({"false_alarm": rate, "value": value, "accepted": share})
    return {
        "inputs": held.n_inputs,
        "edges": edges,
        "counts": counts.tolist(),
        "logarithmic": axis.log,
        "ticks": [[value, text] for value, text in axis.ticks(5)],
        "thresholds": choices,
    }


def _axis(scale: Scale) -> Scale:
    if scale.log:
        high = scale.high * (scale.high / scale.low) ** (_ROOM_IN_LOGARITHMS - 1)
    else:
        high = scale.low + _ROOM * (scale.high - scale.low)
    return Scale(scale.low, high, scale.start, scale.end, scale.log)
