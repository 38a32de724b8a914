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
from tulip_ood.figures.columns import below, by_set, columns, sources
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_MOST_BINS = 40
_EDGE = 0.005  # of the images of a group may lie beyond either side of the picture
_STYLES: dict[str, dict[str, Any]] = {
    "id": {"color": COLOURS["ink"], "ls": "-"},
    **GROUP_LINES,
}
_LAMBDAS = {"balanced": "balanced λ", "literal": "λ of Alg. 1"}


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `bound-histogram` into a folder.

    Args:
        networks: One column for each ID set; the images of its networks are counted together.
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
        for column, own in enumerate(by_set(networks).values()):
            name, id_set = id_name(own[0].id_set), own[0].id_set
            for line, (kind, values) in enumerate(_pooled(own).items()):
                dead = {g: float((v <= 0).double().mean()) for g, v in values.items()}
                facts |= {f"{id_set}, {kind}: {g} inactive": v for g, v in dead.items()}
                lines.append(
                    f"{name}, {_LAMBDAS[kind]}: S ≤ 0 for "
                    + ", ".join(f"{100 * v:.0f} % of {_name(g)}" for g, v in dead.items())
                )
                bins = _draw_panel(grid[line][column], values, dead)
                rows += [{"id_set": id_set, "lambda": kind, **row} for row in bins]
                grid[line][column].set_title(f"{name}, {_LAMBDAS[kind]}")
        for axes in grid[-1]:
            axes.set_xlabel(r"$S\,/\,(J^2\,\Theta_{XX})$")
        for line in grid:
            line[0].set_ylabel("density")
        below(
            figure,
            sources(networks)
            + " Percentages: S ≤ 0 (grey), where nothing is changed. Up to half a per cent of a "
            "group lies beyond either edge.",
        )
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


def _pooled(networks: Sequence[MeasuredNetwork]) -> dict[str, dict[str, Tensor]]:
    """The same over several networks: S is in units of each network's own Θ_XX."""
    each = [_bounds(network) for network in networks]
    return {
        kind: {group: torch.cat([one[kind][group] for one in each]) for group in groups}
        for kind, groups in each[0].items()
    }


def _draw_panel(
    axes: "Axes", values: dict[str, Tensor], dead: dict[str, float]
) -> list[dict[str, Any]]:
    """Draws the groups, and returns their bins."""
    ends = torch.tensor([_EDGE, 1 - _EDGE], dtype=torch.float64)
    quantiles = torch.stack([torch.quantile(own, ends) for own in values.values()])
    low = min(float(quantiles[:, 0].min()), -0.1)
    high = max(float(quantiles[:, 1].max()), 0.1)
    # Few images fill few bins.
    bins = max(8, min(_MOST_BINS, round(1.6 * min(map(len, values.values())) ** 0.5)))
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64).tolist()
    axes.axvspan(low, 0, color=COLOURS["grey"], alpha=0.13, lw=0)
    axes.axvline(0, ymax=0.76, color=COLOURS["grey"], lw=1.2)  # the legend is above
    rows = []
    for group, own in values.items():
        style = _STYLES[group]
        label = f"{_name(group)}: {100 * dead[group]:.0f} %"
        plain = own.numpy()
        weights = [bins / (high - low) / len(own)] * len(own)
        axes.hist(plain, bins=edges, weights=weights, color=style["color"], alpha=0.16)
        heights, *_ = axes.hist(
            plain, bins=edges, weights=weights, histtype="step", lw=2.0, label=label, **style
        )
        rows += [
            {"group": group, "low": left, "high": right, "density": float(height)}
            for left, right, height in zip(edges, edges[1:], heights, strict=False)
        ]
    axes.set(xlim=(low, high), yticks=[])
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(
        loc="upper right",
        title="share with S ≤ 0",
        ncols=len(values),
        columnspacing=1.2,
        alignment="left",
    )
    return rows
