"""S alone as a detector, over λ: the paper's first figure, part (b), and where S is not positive.

λ is drawn in units of the balanced one, 2 Θ_XX / mean D: the unit in which networks compare.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.canvas import COLOURS, Drawn, save
from tulip_ood.figures.columns import below, by_set, columns, draw_each, mean_of, sources, whose
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork, sizes
from tulip_ood.numerics import metrics, scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

Rows = list[dict[str, Any]]
_STEPS = 61
_LEAST_REACH = 2.0  # in balanced λ


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `lambda-sweep` into a folder.

    Args:
        networks: One column for each ID set.
        out: The folder.

    Example:
        >>> draw([])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network to draw
    """
    rows: Rows = []
    facts: dict[str, Any] = {}
    lines: list[str] = []
    with columns(networks, 2, sharex="col", height_ratios=(1.6, 1)) as (figure, grid):
        for column, own in enumerate(by_set(networks).values()):
            known = [_known(network) for network in own]
            reach = max(_LEAST_REACH, 1.15 * max(k["literal_over_balanced"] for k in known))
            swept = [_sweep(network, reach) for network in own]
            rows += [row for each in swept for row in each]
            for network, each in zip(own, known, strict=True):
                facts |= {f"{network.name}: {key}": value for key, value in each.items()}
            lines += _lines(own, swept, known)
            _draw_aurocs(grid[0][column], own, swept, known)
            _draw_inactive(grid[1][column], own, swept, known)
        grid[0][0].set_ylabel("AUROC of S against ID, %")
        grid[1][0].set_ylabel("share with S ≤ 0, %")
        _legend(figure, grid[0][0], networks[0])
        below(figure, sources(networks, lines=True) + f" ε = {EPSILON:g}.")
        return save(figure, "lambda-sweep", out, rows, facts, lines)


def _known(network: MeasuredNetwork) -> dict[str, float]:
    """What does not depend on λ."""
    balanced = network.constants(Setting(EPSILON)).balanced_lam
    plain = network.aurocs(lambda p: scores.entropy(p.base.to(torch.float64).softmax(dim=-1)))
    return {
        "balanced_lam": balanced,
        "literal_over_balanced": network.literal_lambda() / balanced,
        **{f"entropy_{group}": plain[group] for group in network.groups},
    }


def _sweep(network: MeasuredNetwork, reach: float) -> Rows:
    constants = network.constants(Setting(EPSILON))
    measured = {e.name: sizes(e.passes[EPSILON]) for e in network.of("id", "near", "far")}
    rows = []
    for balance in torch.linspace(0, reach, _STEPS, dtype=torch.float64).tolist():
        lam = balance * constants.balanced_lam
        bounds = {name: m.bound(constants.trace_xx, lam) for name, m in measured.items()}
        inside = bounds[network.only("id").name]
        found = {
            each.name: metrics.auroc(inside, bounds[each.name])
            for each in network.of("near", "far")
        }
        found |= {
            group: mean_of([[found[each.name]] for each in network.of(group)])[0]
            for group in network.groups
        }
        rows += [
            {
                "network": network.name,
                "id_set": network.id_set,
                "lam": lam,
                "lam_over_balanced": balance,
                "set": name,
                "auroc": value,
                "inactive_id": _inactive(network, "id", bounds),
                "inactive": _inactive(network, name, bounds),
            }
            for name, value in found.items()
        ]
    return rows


def _inactive(network: MeasuredNetwork, name: str, bounds: Mapping[str, Tensor]) -> float:
    """Of a group ("id", "near", "far") or of one set, over all of its images."""
    chosen = [e.name for e in network.of("id", "near", "far") if name in (e.group, e.name)]
    return float(torch.cat([bounds[each] <= 0 for each in chosen]).double().mean())


def _of(swept: Sequence[Rows], name: str, key: str) -> tuple[list[float], list[list[float]]]:
    """λ, and a line for each network."""
    chosen = [[row for row in rows if row["set"] == name] for rows in swept]
    x = [row["lam_over_balanced"] for row in chosen[0]]
    return x, [[100 * row[key] for row in rows] for rows in chosen]


def _mean(known: Sequence[Mapping[str, float]], key: str) -> float:
    return sum(each[key] for each in known) / len(known)


def _marks(axes: "Axes", known: Sequence[Mapping[str, float]]) -> None:
    axes.axvline(1.0, color=COLOURS["green"], lw=1.6, zorder=0)
    literal = [each["literal_over_balanced"] for each in known]
    axes.axvspan(min(literal), max(literal), color=COLOURS["purple"], alpha=0.2, lw=0, zorder=0)
    middle = _mean(known, "literal_over_balanced")
    axes.axvline(middle, color=COLOURS["purple"], lw=1.6, ls="-.", zorder=0)


def _draw_aurocs(
    axes: "Axes",
    networks: Sequence[MeasuredNetwork],
    swept: Sequence[Rows],
    known: Sequence[Mapping[str, float]],
) -> None:
    _marks(axes, known)
    for group in networks[0].groups:
        style = GROUP_LINES[group]
        draw_each(axes, *_of(swept, group, "auroc"), lw=2.4, **style)
        plain = 100 * _mean(known, f"entropy_{group}")
        axes.axhline(plain, lw=1.3, ls=":", color=style["color"])
    axes.set_title(id_name(networks[0].id_set))
    low, high = axes.get_ylim()
    top = high + 0.13 * (high - low)
    axes.set_ylim(low, top)
    literal = min(each["literal_over_balanced"] for each in known)
    for at, text, colour in ((1.0, " balanced λ", "green"), (literal, "λ of Alg. 1 ", "purple")):
        right = text.endswith(" ")
        axes.text(
            at, top, text, color=COLOURS[colour], ha="right" if right else "left", va="top",
            fontsize=11,
        )  # fmt: skip


def _draw_inactive(
    axes: "Axes",
    networks: Sequence[MeasuredNetwork],
    swept: Sequence[Rows],
    known: Sequence[Mapping[str, float]],
) -> None:
    _marks(axes, known)
    x, each = _of(swept, networks[0].groups[0], "inactive_id")
    draw_each(axes, x, each, color=COLOURS["ink"], lw=2.4)
    for group in networks[0].groups:
        draw_each(axes, *_of(swept, group, "inactive"), lw=2.0, **GROUP_LINES[group])
    axes.set(ylim=(-3, 103), xlim=(0, max(x)), xlabel="λ in units of the balanced λ")


def _legend(figure: "Figure", axes: "Axes", network: MeasuredNetwork) -> None:
    """Once for all panels, above them."""
    lines: list[tuple[str, dict[str, Any]]] = [("ID", {"color": COLOURS["ink"]})]
    lines += [(f"{group} OOD", GROUP_LINES[group]) for group in network.groups]
    lines.append(("plain entropy (near, far)", {"color": COLOURS["grey"], "ls": ":"}))
    handles = [axes.plot([], [], label=label, **style)[0] for label, style in lines]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _lines(
    networks: Sequence[MeasuredNetwork],
    swept: Sequence[Rows],
    known: Sequence[Mapping[str, float]],
) -> list[str]:
    name = whose(networks)
    found = []
    for group in networks[0].groups:
        x, each = _of(swept, group, "auroc")
        y = mean_of(each)
        best = max(range(len(y)), key=y.__getitem__)
        found.append(
            f"{name}, {group}: S alone reaches {y[0]:.1f} at λ = 0, {y[best]:.1f} at "
            f"{x[best]:.2f} × balanced; plain entropy {100 * _mean(known, f'entropy_{group}'):.1f}"
        )
    literal = _mean(known, "literal_over_balanced")
    found.append(f"{name}: the λ of Alg. 1 is {literal:.2f} × the balanced one")
    return found
