"""A curve with a gap in its data: where may a regression network be believed?

Five small networks learn the same noisy points; one of them is the model, all five an ensemble.
TULiP gives the model's error bars and sees what lies beyond the ends of the data. It does *not* see
the gap between the points: there the weights' noise moves the output as little as beside it. The
features' distance to the data (KNN) and the ensemble do.

    python examples/regression.py
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from common import Numbers, judged, main
from torch import Tensor, nn

import tulip_ood as tulip
from tulip_ood.figures.canvas import COLOURS, canvas

ENDS, GAP, REACH = (-4.0, 4.0), (-1.0, 1.5), 6.0


def curve(x: Tensor) -> Tensor:
    """The truth."""
    return torch.sin(2 * x) + 0.3 * x


def measured(n: int) -> tuple[Tensor, Tensor]:
    """Noisy points of the curve, none of them in the gap."""
    x = torch.empty(4 * n, 1).uniform_(*ENDS)
    x = x[(x < GAP[0]) | (x > GAP[1])][:n, None]
    return x, curve(x) + 0.1 * torch.randn_like(x)


def train(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """An MLP, Adam, all points at once."""
    model = nn.Sequential(
        nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model.eval()


def run(seed: int, quick: bool) -> tuple[Numbers, Any]:
    """Train five networks, compare detectors, and look along the axis."""
    torch.manual_seed(seed)
    points, val, test = measured(60), measured(400), measured(400)
    model, *others = (train(*points, steps=50 if quick else 1500) for _ in range(5))
    beyond = torch.cat([torch.linspace(-REACH, -4.2, 100), torch.linspace(4.2, REACH, 100)])
    odd = {
        "beyond the ends": beyond[:, None],
        "in the gap": torch.linspace(-0.8, 1.3, 200)[:, None],
    }
    found = tulip.compare(
        model,
        id_val=[val],
        id_test=[test],
        ood={name: [x] for name, x in odd.items()},
        task="regression",
        methods=["noise", "tulip", "knn", "ensemble"],
        ensemble=others,
        seed=seed,
    )
    detector = found.detectors["tulip"]

    def inside(x: Tensor, y: Tensor) -> float:
        """How often the truth lies within the 95 % interval."""
        answer = detector.predict(x)
        return float(((answer.probs - y).abs() <= 1.96 * answer.variance.sqrt()).float().mean())

    numbers = {"95 % interval holds, inside the data": inside(*test)}
    numbers |= {f"95 % interval holds, {name}": inside(x, curve(x)) for name, x in odd.items()}
    numbers["methods"] = judged(found.val)

    x = torch.linspace(-REACH, REACH, 601)[:, None]
    answer = detector.predict(x)
    with torch.no_grad():
        every = torch.stack([network(x) for network in (model, *others)])
    bands = {
        "TULiP, one network": (answer.probs, answer.variance.sqrt()),
        "ensemble of five networks": (
            every.mean(dim=0),
            (every.var(dim=0, correction=0) + detector.fitted.noise(0.0)).sqrt(),
        ),
    }
    refused = {name: ~found.detectors[name].predict(x).accepted for name in judged(found.val)}
    return numbers, (points, x[:, 0], bands, refused)


def draw(picture: Any, path: Path) -> None:
    """Two bands over the same points, and where each detector refuses."""
    from matplotlib.colors import ListedColormap

    points, x, bands, refused = picture
    colours = ListedColormap(["#E4E4E4", COLOURS["vermilion"]])
    with canvas(10.0, 9.2) as figure:
        *panels, bars = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.5))
        for axes, (name, (mean, deviation)), colour in zip(
            panels, bands.items(), ("blue", "orange"), strict=True
        ):
            middle, half = mean[:, 0], 2 * deviation[:, 0]
            axes.fill_between(
                x, middle - half, middle + half, color=COLOURS[colour], alpha=0.35, lw=0
            )
            axes.plot(x, middle, color=COLOURS[colour], label="prediction ± 2 standard deviations")
            axes.plot(x, curve(x), color=COLOURS["ink"], lw=1.3, ls=(0, (4, 3)), label="the truth")
            axes.plot(*points, "o", color=COLOURS["ink"], ms=4, label="training points")
            axes.set_title(name)
            axes.set(ylim=(-4.6, 4.6), ylabel="y")
        panels[0].legend(loc="lower right", ncols=3)
        panels[1].text(
            0.25, -4, "no training data\nwhere hatched", ha="center", color=COLOURS["grey"]
        )
        names = {"noise": "weight noise", "tulip": "TULiP", "knn": "KNN", "ensemble": "ensemble"}
        rows = torch.stack([refused[name] for name in names]).float()
        for row, shares in enumerate(rows[:, None]):
            place = (-REACH, REACH, row + 0.33, row - 0.33)
            bars.imshow(
                shares.numpy(), extent=place, cmap=colours, vmin=0, vmax=1, aspect="auto", zorder=2
            )
        bars.set_yticks(range(len(names)), names.values())
        bars.set_ylim(len(names) - 0.5, -0.5)
        bars.set_title("where each one refuses to answer (red), at 5 % false alarms")
        bars.set(xlim=(-REACH, REACH), xlabel="x")
        for axes in (*panels, bars):
            for left, right in ((-REACH, ENDS[0]), GAP, (ENDS[1], REACH)):
                axes.axvspan(
                    left, right, facecolor="none", edgecolor="#C4C4C4", hatch="//", lw=0, zorder=0
                )
        figure.savefig(path, format="png")


if __name__ == "__main__":
    warnings.simplefilter("ignore", tulip.TulipWarning)  # findings stand in detector.report()
    main("regression", run, draw)
