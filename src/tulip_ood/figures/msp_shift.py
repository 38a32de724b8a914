"""The network's confidence before and after TULiP: the paper's third figure, part (b)."""

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
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import envelope, metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_BINS = 25


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `msp-shift` into a folder: J = J*, balanced λ.

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
    with columns(networks, 2, sharex=True, sharey="col") as (figure, grid):
        for column, network in enumerate(networks):
            group = network.groups[-1]
            found = _confidences(network, group)
            name = id_name(network.id_set)
            change = {g: _mean_change(pair) for g, pair in found.items()}
            auroc = [metrics.auroc(-found["id"][i], -found[group][i]) for i in (0, 1)]
            facts |= {f"{network.name}: mean change, {g}": v for g, v in change.items()}
            facts |= {f"{network.name}: auroc {w}": a for w, a in zip(_WHEN, auroc, strict=True)}
            lines.append(
                f"{name}: the mean confidence falls by {-100 * change['id']:.1f} points on ID and "
                f"by {-100 * change[group]:.1f} on {group} OOD; AUROC of MSP {100 * auroc[0]:.1f} "
                f"before, {100 * auroc[1]:.1f} after"
            )
            rows += [
                {"network": network.name, "group": g, "before": before, "after": after}
                for g, pair in found.items()
                for before, after in zip(*(part.tolist() for part in pair), strict=True)
            ]
            titles = (
                f"{name}: ID",
                f"{name}: {group} OOD, AUROC {100 * auroc[0]:.1f} → {100 * auroc[1]:.1f}",
            )
            for line, (g, pair) in enumerate(found.items()):
                _draw_panel(grid[line][column], g, pair, change[g])
                grid[line][column].set_title(titles[line])
        for axes in grid[-1]:
            axes.set_xlabel("confidence: the largest probability")
        for line in grid:
            line[0].set_ylabel("share of images")
        below(figure, sources(networks) + " Balanced λ, J = J*.")
        return save(figure, "msp-shift", out, rows, facts, lines)


_WHEN = ("before", "after")


def _confidences(network: MeasuredNetwork, group: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The largest probability before and after, of ID and of one group of OOD sets."""
    constants = network.constants(Setting(EPSILON))

    def both(passes: Passes) -> tuple[Tensor, Tensor]:
        base = passes.base.to(torch.float64)
        gamma = constants.j_star * sizes(passes).stretch(constants.trace_xx, constants.lam)
        after = envelope.samples(base, passes.noisy, gamma).softmax(dim=-1).mean(dim=0)
        return base.softmax(dim=-1).amax(dim=-1), after.amax(dim=-1)

    found = {}
    for g in ("id", group):
        pairs = [both(each.passes[EPSILON]) for each in network.of(g)]
        before, after = (torch.cat(part) for part in zip(*pairs, strict=True))
        found[g] = (before, after)
    return found


def _mean_change(pair: tuple[Tensor, Tensor]) -> float:
    return float((pair[1] - pair[0]).mean())


def _draw_panel(axes: "Axes", group: str, pair: tuple[Tensor, Tensor], change: float) -> None:
    colour = COLOURS["ink"] if group == "id" else GROUP_LINES[group]["color"]
    edges = torch.linspace(0, 1, _BINS + 1).tolist()
    weight = [1 / len(pair[0])] * len(pair[0])
    axes.hist(
        pair[1].numpy(), bins=edges, weights=weight, color=colour, alpha=0.35, label="after TULiP"
    )
    axes.hist(
        pair[0].numpy(), bins=edges, weights=weight, histtype="step", color=colour, lw=2.2,
        label="before",
    )  # fmt: skip
    axes.set(xlim=(0, 1), yscale="log")
    axes.legend(loc="upper left", title=f"mean change {100 * change:+.1f} points", alignment="left")
