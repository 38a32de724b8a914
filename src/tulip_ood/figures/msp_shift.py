"""The network's confidence before and after TULiP: the paper's third figure, part (b)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.canvas import COLOURS, Drawn, save
from tulip_ood.figures.columns import below, by_set, columns, sources, whose
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, sizes
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import envelope, metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_BINS = 25
Confidences = dict[str, tuple[Tensor, Tensor]]  # before and after, by group


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `msp-shift` into a folder: J = J*, balanced λ.

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
    with columns(networks, 2, sharex=True, sharey="col") as (figure, grid):
        for column, own in enumerate(by_set(networks).values()):
            group, name = own[0].groups[-1], id_name(own[0].id_set)
            each = [_confidences(network, group) for network in own]
            auroc = [_auroc(each, group, when) for when in (0, 1)]
            found = {g: _pooled(each, g) for g in ("id", group)}
            change = {g: float((after - before).mean()) for g, (before, after) in found.items()}
            facts |= {f"{own[0].id_set}: mean change, {g}": v for g, v in change.items()}
            facts |= {f"{own[0].id_set}: auroc {w}": a for w, a in zip(_WHEN, auroc, strict=True)}
            lines.append(
                f"{whose(own)}: the mean confidence falls by {-100 * change['id']:.1f} points on "
                f"ID and by {-100 * change[group]:.1f} on {group} OOD; AUROC of MSP "
                f"{100 * auroc[0]:.1f} before, {100 * auroc[1]:.1f} after"
            )
            titles = (
                f"{name}: ID",
                f"{name}: {group} OOD, AUROC {100 * auroc[0]:.1f} → {100 * auroc[1]:.1f}",
            )
            for line, (g, pair) in enumerate(found.items()):
                bins = _draw_panel(grid[line][column], g, pair, change[g])
                rows += [{"id_set": own[0].id_set, "group": g, **row} for row in bins]
                grid[line][column].set_title(titles[line])
        for axes in grid[-1]:
            axes.set_xlabel("confidence: the largest probability")
        for line in grid:
            line[0].set_ylabel("share of images")
        below(figure, sources(networks) + " Balanced λ, J = J*.")
        return save(figure, "msp-shift", out, rows, facts, lines)


_WHEN = ("before", "after")


def _confidences(network: MeasuredNetwork, group: str) -> Confidences:
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


def _pooled(each: Sequence[Confidences], group: str) -> tuple[Tensor, Tensor]:
    before, after = (torch.cat(part) for part in zip(*(one[group] for one in each), strict=True))
    return before, after


def _auroc(each: Sequence[Confidences], group: str, when: int) -> float:
    """The mean over networks."""
    found = [metrics.auroc(-one["id"][when], -one[group][when]) for one in each]
    return sum(found) / len(found)


def _draw_panel(
    axes: "Axes", group: str, pair: tuple[Tensor, Tensor], change: float
) -> list[dict[str, float]]:
    """Draws both histograms, and returns their bins."""
    colour = COLOURS["ink"] if group == "id" else GROUP_LINES[group]["color"]
    edges = torch.linspace(0, 1, _BINS + 1).tolist()
    weight = [1 / len(pair[0])] * len(pair[0])
    before, *_ = axes.hist(
        pair[0].numpy(), bins=edges, weights=weight, histtype="step", color=colour, lw=2.2,
        label="before",
    )  # fmt: skip
    after, *_ = axes.hist(
        pair[1].numpy(), bins=edges, weights=weight, color=colour, alpha=0.35, label="after TULiP"
    )
    axes.set(xlim=(0, 1), yscale="log")
    text = f"mean change {100 * change:+.1f} points".replace("-", "\N{MINUS SIGN}")
    axes.legend(loc="upper left", title=text, alignment="left")
    return [
        {"low": low, "high": high, "before": float(one), "after": float(two)}
        for low, high, one, two in zip(edges, edges[1:], before, after, strict=False)
    ]
