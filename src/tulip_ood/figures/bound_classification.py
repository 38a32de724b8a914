"""Where the bound, the ensemble and TULiP are unsure: maps of two problems in the plane.

The theorem holds for any smooth loss; here it is the logistic one. The bound's shape is the
distance of gradients to the training set (Eq. 5 without its constants), the ensemble many draws of
the same infinite network, trained; TULiP sees one finite network and held-out points.
"""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, TulipWarning
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.toy_network import train_toy_network
from tulip_ood.theory.bound import gradient_distance
from tulip_ood.theory.flow import linearised, prior
from tulip_ood.theory.kernels import WideNetwork, kernels
from tulip_ood.theory.losses import LOGISTIC
from tulip_ood.theory.problems import CLASSIFICATION, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["NETWORK", "Settings", "draw"]

# Chosen by eye among a few: with smaller spreads, ReLU, or longer training the ensemble is unsure
# only along the border of the classes and its continuation, whatever the bound's shape says.
NETWORK = WideNetwork(depth=2, activation="erf", W_std=4.0, b_std=4.0)
_REACH = 3.5  # of the maps; the training points lie within 2.5
_HELD_OUT = 1  # added to the seed for points that training has not seen


@dataclass(frozen=True)
class Settings:
    """What is drawn.

    Attributes:
        points: Training points of each problem.
        side: The maps have side × side inputs.
        draws: Networks in the ensemble.
        time: How long each of them trains.
        width: Of the finite network.
        steps: Of its training.
        held_out: Points that TULiP is fitted on.
        seed: Of everything.

    Example:
        >>> Settings(side=8).draws
        64
    """

    points: int = 70
    side: int = 45
    draws: int = 64
    time: float = 300.0
    width: int = 256
    steps: int = 300
    held_out: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"points": 4, "side": 2, "draws": 2, "width": 1, "steps": 0, "held_out": 20}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InputError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if not 0 < self.time < math.inf:
            raise InputError(f"time must be positive and finite, got {self.time}")


@dataclass(frozen=True)
class _Maps:
    """One problem: its training points, and what each of three says on the grid, then on these."""

    points: Points
    z: Tensor
    distance: Tensor
    spread: Tensor
    score: Tensor
    facts: dict[str, float]
    findings: list[str]


def _grid(side: int) -> Tensor:
    """Row by row from below, as a picture with its origin below is stored: [side², 2]."""
    line = torch.linspace(-_REACH, _REACH, side, dtype=torch.float64)
    return torch.cartesian_prod(line, line).flip(1)


def _theory(points: Points, z: Tensor, settings: Settings) -> tuple[Tensor, Tensor, float]:
    """The gradient distance, the spread of the ensemble's probabilities, and its accuracy."""
    n = len(points)
    both = kernels(NETWORK, torch.cat([points.x, z]))
    train, cross = both.ntk[:n, :n], both.ntk[n:, :n]
    distance = gradient_distance(train, cross, both.ntk.diagonal()[n:])
    start = prior(both.nngp, draws=settings.draws, seed=settings.seed)
    # The map takes no part in the training, and follows from the pull on the training points.
    end = linearised(
        train,
        cross[:0],
        start[:, :n],
        start[:, :0],
        points.y,
        LOGISTIC,
        time=settings.time,
        tolerance=1e-5,
    )
    outputs = start[:, n:] - cross @ end.pull / n
    right = (end.train > 0) == (points.y > 0.5)
    return distance, outputs.sigmoid().std(dim=0)[:, 0], float(right.double().mean())


def _tulip(
    points: Points, held: Points, z: Tensor, settings: Settings
) -> tuple[Tensor, float, list[str]]:
    """TULiP's score of a finite network, that network's accuracy on held-out points, findings."""
    module = train_toy_network(
        NETWORK, points, width=settings.width, steps=settings.steps, seed=settings.seed
    )
    x, labels = held.x.float(), held.y[:, 0].long()
    with warnings.catch_warnings():  # these are the findings below
        warnings.simplefilter("ignore", TulipWarning)
        detector = Tulip(module, seed=settings.seed).fit([(x, labels)], recipe="balanced")
        score = detector.score(z.float())
    with torch.no_grad():
        accuracy = float((module(x).argmax(dim=1) == labels).double().mean())
    findings = [str(finding) for finding in detector.report().findings]
    return score.to(torch.float64), accuracy, findings


def _maps(name: str, settings: Settings) -> _Maps:
    make = CLASSIFICATION[name]
    points = make(settings.points, seed=settings.seed)
    held = make(settings.held_out, seed=settings.seed + _HELD_OUT)
    z = torch.cat([_grid(settings.side), points.x])
    distance, spread, fitted = _theory(points, z, settings)
    score, accuracy, findings = _tulip(points, held, z, settings)
    on_map = slice(settings.side**2)
    near = distance[on_map] < distance[on_map].median()
    facts = {
        "ensemble_training_accuracy": fitted,
        "network_held_out_accuracy": accuracy,
        "spread_in_the_nearer_half": float(spread[on_map][near].mean()),
        "spread_in_the_farther_half": float(spread[on_map][~near].mean()),
    }
    return _Maps(points, z, distance, spread, score, facts, findings)


def draw(out: str | Path = "figures", settings: Settings | None = None) -> Drawn:
    """Draw `bound-classification` into a folder.

    Args:
        out: The folder.
        settings: What is drawn; by default what `tulip reproduce bound-classification` shows.

    Example:
        >>> import tempfile
        >>> small = Settings(points=8, side=5, draws=2, width=8, steps=2, held_out=40)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawn = draw(folder, small)
        >>> drawn.table.name, len(drawn.rows)
        ('bound-classification.parquet', 66)
    """
    need_matplotlib()
    settings = settings or Settings()
    found = {name: _maps(name, settings) for name in CLASSIFICATION}
    rows = [row for name, maps in found.items() for row in _rows(name, maps, settings)]
    facts: dict[str, Any] = {
        f"{name}: {fact}": value
        for name, maps in found.items()
        for fact, value in maps.facts.items()
    }
    with canvas(13.4, 8.4) as figure:
        figure.set_layout_engine("constrained", w_pad=0.1)
        grid = figure.subplots(len(found), 3, squeeze=False, sharex=True, sharey=True)
        for (name, maps), line in zip(found.items(), grid, strict=True):
            _draw_line(figure, list(line), name, maps, settings)
        for axes in grid[-1]:
            axes.set_xlabel("first input")
        _legend(figure, grid[0][0])
        return save(figure, "bound-classification", out, rows, facts, _lines(found))


def _rows(name: str, maps: _Maps, settings: Settings) -> list[dict[str, Any]]:
    columns = torch.stack([*maps.z.T, maps.distance, maps.spread, maps.score], dim=1).tolist()
    keys = ("first", "second", "gradient_distance", "ensemble_std", "tulip_score")
    labels = [None] * settings.side**2 + maps.points.y[:, 0].long().tolist()
    return [
        {
            "problem": name,
            "role": "grid" if label is None else "train",
            "label": label,
            **dict(zip(keys, row, strict=True)),
        }
        for label, row in zip(labels, columns, strict=True)
    ]


def _lines(found: dict[str, _Maps]) -> list[str]:
    lines = []
    for name, maps in found.items():
        near, far, accuracy = (
            maps.facts[fact]
            for fact in (
                "spread_in_the_nearer_half",
                "spread_in_the_farther_half",
                "network_held_out_accuracy",
            )
        )
        lines += [
            f"{name}: the ensemble's probabilities have a mean spread of {near:.3f} on the half of "
            f"the map that is nearer by the bound, and of {far:.3f} on the other",
            f"{name}: the finite network is right on {accuracy:.1%} of held-out points",
            *(f"{name}: {finding}" for finding in maps.findings),
        ]
    return lines


def _draw_line(
    figure: "Figure", line: "list[Axes]", name: str, maps: _Maps, settings: Settings
) -> None:
    panels = (
        ("bound's shape", "gradient distance to X", maps.distance),
        ("ensemble", f"std of p over {settings.draws} networks", maps.spread),
        ("TULiP", "score (entropy), one network", maps.score),
    )
    for axes, (title, unit, values) in zip(line, panels, strict=True):
        picture = axes.imshow(
            values[: settings.side**2].reshape(settings.side, settings.side).numpy(),
            origin="lower",
            extent=(-_REACH, _REACH, -_REACH, _REACH),
            cmap="cividis",  # even in lightness, and the same to every eye
            interpolation="bilinear",
            vmin=0.0,
        )
        figure.colorbar(picture, ax=axes, label=unit, shrink=0.86, pad=0.02)
        for label, marker, colour in ((0, "o", "white"), (1, "^", COLOURS["vermilion"])):
            chosen = maps.points.y[:, 0] == label
            axes.scatter(
                maps.points.x[chosen, 0], maps.points.x[chosen, 1], s=26, marker=marker, c=colour,
                edgecolors=COLOURS["ink"], linewidths=0.7, label=f"training points, class {label}",
            )  # fmt: skip
        axes.set_title(f"{name}: {title}")
        axes.set(xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), aspect="equal")
    line[0].set_ylabel("second input")


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=1.4)
