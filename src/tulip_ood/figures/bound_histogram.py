"""How S lies for ID, near and far images: the paper's third figure, part (a), for two λ.

Where S ≤ 0 the stretch γ is 0 and the network's answer is left as it is: that part is shaded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.canvas import COLOURS, Drawn, save
from tulip_ood.figures.columns import below, columns, sources
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_MOST_BINS = 40
_EDGE = 0.01  # of the images on either side lie beyond the picture, in its outermost bins
_STYLES: dict[str, dict[str, Any]] = {
    "id": {"color": COLOURS["ink"], "ls": "-"},
    **GROUP_LINES,
}
_LAMBDAS = {"balanced": "balanced λ", "literal": "λ of Alg. 1"}


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `bound-histogram` into a folder.

    Args:
        networks: One column for each.
        out: The folder.

    Example:
        >>> draw([])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network to draw
    """
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    lines: list[str] = []
    with columns(networks, 2) as (figure, grid):
        for column, network in enumerate(networks):
            for line, (kind, values) in enumerate(_bounds(network).items()):
                dead = {g: float((v <= 0).double().mean()) for g, v in values.items()}
                name = id_name(network.id_set)
                facts |= {f"{network.name}, {kind}: {g} inactive": v for g, v in dead.items()}
                lines.append(
                    f"{name}, {_LAMBDAS[kind]}: S ≤ 0 for "
                    + ", ".join(f"{100 * v:.0f} % of {_name(g)}" for g, v in dead.items())
                )
                rows += [
                    {"network": network.name, "lambda": kind, "group": g, "s_over_theta": value}
                    for g, v in values.items()
                    for value in v.tolist()
                ]
                _draw_panel(grid[line][column], values, dead)
                grid[line][column].set_title(f"{name}, {_LAMBDAS[kind]}")
        for axes in grid[-1]:
            axes.set_xlabel(r"$S\,/\,(J^2\,\Theta_{XX})$")
        for line in grid:
            line[0].set_ylabel("density")
        below(figure, sources(networks) + " Percentages: S ≤ 0, where nothing is changed.")
        return save(figure, "bound-histogram", out, rows, facts, lines)


def _name(group: str) -> str:
    return "ID" if group == "id" else group


def _bounds(network: MeasuredNetwork) -> dict[str, dict[str, Tensor]]:
    """S / (J² Θ_XX) by λ and group."""
    constants = network.constants(Setting(EPSILON))
    lams = {"balanced": constants.balanced_lam, "literal": network.literal_lambda()}
    return {
        kind: {
            group: torch.cat(
                [
                    sizes(each.passes[EPSILON]).bound(constants.trace_xx, lam) / constants.trace_xx
                    for each in network.of(group)
                ]
            )
            for group in ("id", *network.groups)
        }
        for kind, lam in lams.items()
    }


def _draw_panel(axes: "Axes", values: dict[str, Tensor], dead: dict[str, float]) -> None:
    every = torch.cat(list(values.values()))
    low, high = torch.quantile(every, torch.tensor([_EDGE, 1 - _EDGE], dtype=every.dtype)).tolist()
    low, high = min(low, -0.1), max(high, 0.1)
    # Few images fill few bins.
    bins = max(8, min(_MOST_BINS, round(1.6 * min(map(len, values.values())) ** 0.5)))
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    axes.axvspan(low, 0, color=COLOURS["grey"], alpha=0.13, lw=0)
    axes.axvline(0, color=COLOURS["grey"], lw=1.2)
    for group, own in values.items():
        style = _STYLES[group]
        label = f"{_name(group)}: {100 * dead[group]:.0f} %"
        inside = own.clamp(low, high).numpy()
        axes.hist(inside, bins=edges.tolist(), density=True, color=style["color"], alpha=0.16)
        axes.hist(
            inside, bins=edges.tolist(), density=True, histtype="step", lw=2.0, label=label, **style
        )
    axes.set(xlim=(low, high), yticks=[])
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(
        loc="upper right",
        title="share with S ≤ 0",
        ncols=len(values),
        columnspacing=1.2,
        alignment="left",
    )
