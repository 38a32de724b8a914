"""Every score on the envelope, over its strength: the paper's third figure, part (c).

J is drawn in units of J*, the one that the likelihood of validation images chooses; 0 is the
network alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tulip_ood.detectors.envelope_fit import Constants, score_stretched
from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.canvas import COLOURS, MARKERS, Drawn, save
from tulip_ood.figures.columns import below, by_set, columns, draw_each, mean_of, sources, whose
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, sizes
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.tasks import make_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "score_at"]

_SCORES = {"msp": "orange", "ent": "ink", "gen": "green", "ebo": "purple", "mls": "sky"}
_SCALINGS = tuple(i / 4 for i in range(13))
_TASK = make_task("classification")
_DEEPEST = 3.0  # points below the worst of the plain scores, where the picture ends


def score_at(constants: Constants, name: str, j: float, passes: Passes) -> Tensor:
    """A score of the envelope with some J.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> base = torch.zeros(3, 2)
        >>> passes = Passes(base, base[None], base, None, None, PassSettings(0.01, n_samples=1))
        >>> score_at(Constants(1.0, 0.0, 0.0, 1.0, 0.0, None, None), "msp", 1.0, passes)
        tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    gamma = j * sizes(passes).stretch(constants.trace_xx, constants.lam)
    return score_stretched(passes, _TASK, name, gamma)


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `enhancement` into a folder.

    Args:
        networks: One column for each ID set.
        out: The folder.

    Example:
        >>> draw([])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network to draw
    """
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    units: dict[str, Any] = {}
    with columns(networks, 2, sharex="col") as (figure, grid):
        for column, own in enumerate(by_set(networks).values()):
            found, stars = [], []
            for network in own:
                constants = network.constants(Setting(EPSILON))
                stars.append(constants.j_star)
                units[f"{network.name}: J*"] = constants.j_star
                found.append(_over_j(network, constants, constants.j_star or 1.0))
                rows += found[-1]
            lines += _lines(own, found, "J*" if min(stars) else "J* (1 where that is 0)")
            for line, group in enumerate(own[0].groups):
                axes = grid[line][column]
                _draw_panel(axes, found, group)
                axes.set_title(f"{id_name(own[0].id_set)}, {group} OOD")
            grid[-1][column].set_xlabel(_unit(stars))
        for line in grid:
            line[0].set_ylabel("AUROC, %")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        more = f" Balanced λ, ε = {EPSILON:g}; 0: without TULiP. Lines may go on below."
        below(figure, sources(networks, lines=True) + more)
        return save(figure, "enhancement", out, rows, units, lines)


def _unit(stars: Sequence[float]) -> str:
    if not max(stars):
        return "J  (J* = 0)"
    low, high = f"{min(stars):.2f}", f"{max(stars):.2f}"
    return f"J / J*  (J* = {low if low == high else f'{low} to {high}'})"


def _over_j(network: MeasuredNetwork, constants: Constants, unit: float) -> list[dict[str, Any]]:
    return [
        {
            "network": network.name,
            "id_set": network.id_set,
            "score": name,
            "j_scaling": scaling,
            "j": scaling * unit,
            "set": each,
            "auroc": value,
        }
        for name in _SCORES
        for scaling in _SCALINGS
        for each, value in network.aurocs(
            lambda p, n=name, s=scaling: score_at(constants, n, s * unit, p)  # type: ignore[misc]
        ).items()
    ]


def _line(rows: list[dict[str, Any]], score: str, group: str) -> list[float]:
    return [100 * r["auroc"] for r in rows if (r["score"], r["set"]) == (score, group)]


def _draw_panel(axes: "Axes", found: Sequence[list[dict[str, Any]]], group: str) -> None:
    for (name, colour), marker in zip(_SCORES.items(), MARKERS, strict=False):
        draw_each(
            axes, _SCALINGS, [_line(rows, name, group) for rows in found], color=COLOURS[colour],
            marker=marker, markevery=4, ms=7, mec="white", ls=GROUP_LINES[group]["ls"],
            label=name.upper(),
        )  # fmt: skip
    axes.axvline(1, color=COLOURS["grey"], lw=1.0, zorder=0)
    axes.set_xlim(-0.06, _SCALINGS[-1] + 0.06)
    # A score that breaks down must not flatten all others.
    plain = min(_line(rows, name, group)[0] for rows in found for name in _SCORES)
    axes.set_ylim(bottom=max(axes.get_ylim()[0], plain - _DEEPEST))


def _lines(
    networks: Sequence[MeasuredNetwork], found: Sequence[list[dict[str, Any]]], unit: str
) -> list[str]:
    at = _SCALINGS.index(1.0)
    told = []
    for group in networks[0].groups:
        gains = {name: mean_of([_line(rows, name, group) for rows in found]) for name in _SCORES}
        words = ", ".join(
            f"{name.upper()} {own[0]:.1f} → {own[at]:.1f}" for name, own in gains.items()
        )
        told.append(f"{whose(networks)}, {group}, J = 0 → {unit}: {words}")
    return told
