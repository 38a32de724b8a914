"""A table whose pipeline breaks: a column arrives in another unit, empty, or in another's place.

An MLP tells malignant from benign tumours by 30 measurements (scikit-learn's breast cancer data).
Faulty rows lie far from all that it was trained on, where it is *surer* than ever: its own entropy
ranks them as the safest of all.

    python examples/tabular.py
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from common import Numbers, judged, main
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import tulip_ood as tulip
from tulip_ood.benchmark.evaluate import evaluate
from tulip_ood.figures.canvas import COLOURS, canvas

TRAIN, VAL = 200, 200  # the other 169 rows are for the test


def train(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """An MLP, AdamW, all rows at once."""
    model = nn.Sequential(
        nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def other_unit(x: Tensor, factor: float = 10.0) -> Tensor:
    """The three radius columns (mean, error, worst) times a factor: mm instead of cm."""
    x = x.clone()
    x[:, ::10] *= factor
    return x


def left_empty(x: Tensor) -> Tensor:
    """The ten error columns are missing, and something has filled in zeros."""
    x = x.clone()
    x[:, 10:20] = 0
    return x


def out_of_order(x: Tensor) -> Tensor:
    """The ten mean columns and the ten worst columns have changed places."""
    return torch.cat([x[:, 20:], x[:, 10:20], x[:, :10]], dim=1)


def run(seed: int, quick: bool) -> tuple[Numbers, Any]:
    """Train, fit the detectors, break the test rows in three ways."""
    torch.manual_seed(seed)
    data = load_breast_cancer()
    order = torch.randperm(len(data.data))
    raw = torch.tensor(data.data, dtype=torch.float32)[order]
    y = torch.tensor(data.target)[order]
    mean, std = raw[:TRAIN].mean(dim=0), raw[:TRAIN].std(dim=0)

    def scaled(x: Tensor) -> Tensor:
        return (x - mean) / std

    model = train(scaled(raw[:TRAIN]), y[:TRAIN], steps=50 if quick else 300)
    val = scaled(raw[TRAIN : TRAIN + VAL]), y[TRAIN : TRAIN + VAL]
    rows = raw[TRAIN + VAL :]  # as they arrive: faults happen before scaling
    test = scaled(rows), y[TRAIN + VAL :]

    recipe = "balanced" if quick else "self"
    detectors = {
        "entropy": tulip.detectors.make("ent", model),
        "KNN": tulip.detectors.make("knn", model),
        "MDS": tulip.detectors.make("mds", model),
        "TULiP": tulip.Tulip(model),  # the entropy of two classes ends at log 2 …
        "TULiP, bound": tulip.Tulip(model, score="bound"),  # … and the bound has no end
    }
    for detector in detectors.values():
        detector.fit([val], **({"recipe": recipe} if isinstance(detector, tulip.Tulip) else {}))
    faults = {"other unit": other_unit, "left empty": left_empty, "out of order": out_of_order}
    found = evaluate(detectors, test, {name: scaled(fault(rows)) for name, fault in faults.items()})

    factors = torch.logspace(-1, 1, 9 if quick else 61)
    broken = [scaled(other_unit(rows, float(factor))) for factor in factors]
    with torch.no_grad():
        right = [float((model(part).argmax(1) == test[1]).float().mean()) for part in broken]
    refused = {
        name: [float((~detector.predict(part).accepted).float().mean()) for part in broken]
        for name, detector in detectors.items()
    }
    accuracy = found.methods["entropy"].accuracy
    return {"accuracy": accuracy, "methods": judged(found)}, (factors, right, refused)


def draw(picture: Any, path: Path) -> None:
    """How wrong must a column be before it is noticed?"""
    factors, right, refused = picture
    styles = {
        "entropy": ("grey", (0, (1, 1.2))),
        "KNN": ("orange", "-."),
        "MDS": ("green", (0, (5, 2))),
        "TULiP": ("sky", "-"),
        "TULiP, bound": ("blue", "-"),
    }
    with canvas(10.0, 5.6) as figure:
        axes = figure.subplots()
        axes.fill_between(factors, right, color="#EDEDED", lw=0)
        axes.text(0.11, 0.8, "answers that are right", color=COLOURS["grey"])
        for name, shares in refused.items():
            colour, dashes = styles[name]
            width = 3.0 if name.startswith("TULiP") else 2.0
            axes.plot(factors, shares, color=COLOURS[colour], ls=dashes, lw=width, label=name)
        axes.axhline(0.05, color=COLOURS["vermilion"], lw=1.0)
        axes.text(10.3, 0.05, "5 % promised", color=COLOURS["vermilion"], va="center")
        axes.set(xscale="log", xlim=(0.1, 10), ylim=(0, 1.02))
        ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel("factor on the three radius columns (1 = as measured)")
        axes.set_ylabel("share of rows refused")
        axes.set_title("A column arrives in another unit: who notices?")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(path, format="png")


if __name__ == "__main__":
    warnings.simplefilter("ignore", tulip.TulipWarning)  # findings stand in detector.report()
    main("tabular", run, draw)
