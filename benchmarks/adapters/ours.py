"""Our numbers, without any other library."""

from typing import Any

from data import BATCH, NEAR, OOD, Data
from tulip_ood.detectors import make
from tulip_ood.detectors.base import Detector
from tulip_ood.numerics import metrics


def fitted(data: Data, method: str, *, train: bool = False, tune: bool = False, **settings: Any):
    """Our detector by name, on the validation data; each one is fitted once."""
    key = (method, train, tune, *settings.items())
    if key not in _fitted:
        _fitted[key] = make(method, data.net, batch_size=BATCH, **settings).fit(
            [data.val], train=[data.train] if train else None, tune=[data.ood_val] if tune else None
        )
    return _fitted[key]


_fitted: dict[tuple[object, ...], Detector] = {}


def aurocs(detector: Detector, data: Data) -> dict[str, float]:
    """Of every set."""
    inside = detector.score(data.test[0])
    return {name: metrics.auroc(inside, detector.score(data.ood[name])) for name in OOD}


def openood_table(detector: Detector, data: Data) -> dict[str, float]:
    """The numbers that OpenOOD's evaluator gives, with the mean over near and over far sets."""
    inside = detector.score(data.test[0])
    rows = {}
    for name in OOD:
        outside = detector.score(data.ood[name])
        rows[name] = {
            "AUROC": metrics.auroc(inside, outside),
            "FPR@95": metrics.id_flagged_at_95_ood(inside, outside),
            "AUPR_IN": metrics.aupr_in(inside, outside),
            "AUPR_OUT": metrics.aupr_out(inside, outside),
        }
    far = [name for name in OOD if name not in NEAR]
    for group, names in (("nearood", NEAR), ("farood", far)):
        rows[group] = {
            metric: sum(rows[name][metric] for name in names) / len(names)
            for metric in rows[OOD[0]]
        }
    table = {
        f"{metric} {name}": value for name, row in rows.items() for metric, value in row.items()
    }
    table["ACC"] = float((detector.predict(data.test[0]).label == data.test[1]).double().mean())
    return table
