"""ε × λ, with and without calibration of J: the paper's fourth figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.canvas import COLOURS, MARKERS, Drawn, canvas, save
from tulip_ood.figures.columns import below, by_set, draw_each, mean_of, sources, whose
from tulip_ood.figures.enhancement import score_at
from tulip_ood.figures.labels import id_name
from tulip_ood.figures.measured import MeasuredNetwork

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EPSILONS", "draw"]

EPSILONS = (0.0025, 0.005, 0.01)
_COLOURS = ("sky", "blue", "vermilion", "orange")
_BALANCES = tuple(i / 4 for i in range(9))
_J_SCALING = 2.0  # the paper's, in this figure
_KINDS = {"calibrated": "-", "J = 1": (0, (4, 2))}


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `ablation` into a folder.

    Args:
        networks: One row for each ID set, with passes for several ε.
        out: The folder.

    Example:
        >>> draw([])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network to draw
    """
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    sets = by_set(networks)
    with canvas(12.7, 1.6 + 4.0 * len(sets)) as figure:
        grid = figure.subplots(len(sets), 2, squeeze=False, sharex=True)
        for panels, own in zip(grid, sets.values(), strict=True):
            found = [
                [row for epsilon in _epsilons(network) for row in _over_lambda(network, epsilon)]
                for network in own
            ]
            rows += [row for each in found for row in each]
            lines += _lines(own, found)
            for axes, group in zip(panels, own[0].groups, strict=False):
                _draw_panel(axes, found, group)
                axes.set_title(f"{id_name(own[0].id_set)}, {group} OOD")
            panels[0].set_ylabel("AUROC of entropy, %")
        for axes in grid[-1]:
            axes.set_xlabel("λ in units of the balanced λ")
        _legend(figure, grid[0][0], rows)
        below(
            figure,
            sources(networks, lines=True)
            + f" Solid: J = {_J_SCALING:g} J*, J* from validation images; dashed: J = 1.",
        )
        return save(figure, "ablation", out, rows, {}, lines)


def _epsilons(network: MeasuredNetwork) -> list[float]:
    return sorted(network.only("val").passes)


def _over_lambda(network: MeasuredNetwork, epsilon: float) -> list[dict[str, Any]]:
    found = []
    for balance in _BALANCES:
        constants = network.constants(Setting(epsilon, balance=balance))
        for kind, j in (("calibrated", _J_SCALING * constants.j_star), ("J = 1", 1.0)):
            aurocs = network.aurocs(
                lambda p, c=constants, j=j: score_at(c, "ent", j, p),  # type: ignore[misc]
                epsilon,
            )
            found += [
                {
                    "network": network.name,
                    "id_set": network.id_set,
                    "epsilon": epsilon,
                    "lam_over_balanced": balance,
                    "kind": kind,
                    "j": j,
                    "inactive": constants.inactive,
                    "set": each,
                    "auroc": value,
                }
                for each, value in aurocs.items()
            ]
    return found


def _line(rows: list[dict[str, Any]], epsilon: float, kind: str, group: str) -> list[float]:
    wanted = (epsilon, kind, group)
    return [100 * r["auroc"] for r in rows if (r["epsilon"], r["kind"], r["set"]) == wanted]


def _draw_panel(axes: "Axes", found: Sequence[list[dict[str, Any]]], group: str) -> None:
    for epsilon, colour, marker in _styles(found[0]):
        for kind, style in _KINDS.items():
            calibrated = kind == "calibrated"
            draw_each(
                axes, _BALANCES, [_line(rows, epsilon, kind, group) for rows in found],
                color=colour, ls=style, marker=marker if calibrated else None, markevery=4, ms=7,
                mec="white", lw=2.2 if calibrated else 1.5, clip_on=False,
            )  # fmt: skip
    axes.set_xlim(0, _BALANCES[-1])


def _styles(rows: list[dict[str, Any]]) -> list[tuple[float, str, str]]:
    epsilons = sorted({row["epsilon"] for row in rows})
    names = [_COLOURS[i % len(_COLOURS)] for i in range(len(epsilons))]
    return [
        (epsilon, COLOURS[name], MARKERS[i % len(MARKERS)])
        for i, (epsilon, name) in enumerate(zip(epsilons, names, strict=True))
    ]


def _legend(figure: "Figure", axes: "Axes", rows: list[dict[str, Any]]) -> None:
    """Once for all panels, above them."""
    handles = [
        axes.plot([], [], color=colour, marker=marker, ms=7, mec="white", label=f"ε = {epsilon:g}")
        for epsilon, colour, marker in _styles(rows)
    ]
    words = (f"J = {_J_SCALING:g} J*", "J = 1, not calibrated")
    handles += [
        axes.plot([], [], color=COLOURS["ink"], ls=style, label=label)
        for style, label in zip(_KINDS.values(), words, strict=True)
    ]
    flat = [line for (line,) in handles]
    figure.legend(handles=flat, loc="outside upper center", ncols=len(flat))


def _lines(networks: Sequence[MeasuredNetwork], found: Sequence[list[dict[str, Any]]]) -> list[str]:
    told = []
    for group in networks[0].groups:
        for kind in _KINDS:
            values = [
                value
                for epsilon in _epsilons(networks[0])
                for value in mean_of([_line(rows, epsilon, kind, group) for rows in found])
            ]
            how = f"with J = {_J_SCALING:g} J*" if kind == "calibrated" else "with J = 1"
            told.append(
                f"{whose(networks)}, {group}, {how}: AUROC from {min(values):.1f} to "
                f"{max(values):.1f} over all ε and λ"
            )
    return told
