"""S alone as a detector, over λ: the paper's first figure, part (b), and where S is not positive.

λ is drawn in units of the balanced one, 2 Θ_XX / mean D: the unit in which networks compare.
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
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

_STEPS = 61
_LEAST_REACH = 2.0  # in balanced λ


def draw(networks: Sequence[MeasuredNetwork], out: str | Path = "figures") -> Drawn:
    """Draw `lambda-sweep` into a folder.

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
    with columns(networks, 2, sharex="col", height_ratios=(1.6, 1)) as (figure, grid):
        for column, network in enumerate(networks):
            swept, known = _sweep(network)
            rows += swept
            facts |= {f"{network.name}: {key}": value for key, value in known.items()}
            lines += _lines(network, swept, known)
            _draw_aurocs(grid[0][column], network, swept, known)
            _draw_inactive(grid[1][column], network, swept, known)
        grid[0][0].set_ylabel("AUROC of S against ID, %")
        grid[1][0].set_ylabel("share with S ≤ 0, %")
        _legend(figure, grid[0][0], networks[0])
        below(figure, sources(networks) + f" ε = {EPSILON:g}.")
        return save(figure, "lambda-sweep", out, rows, facts, lines)


def _sweep(network: MeasuredNetwork) -> tuple[list[dict[str, Any]], dict[str, float]]:
    constants = network.constants(Setting(EPSILON))
    literal = network.literal_lambda() / constants.balanced_lam
    reach = max(_LEAST_REACH, 1.15 * literal)
    rows = []
    for balance in torch.linspace(0, reach, _STEPS, dtype=torch.float64).tolist():
        lam = balance * constants.balanced_lam

        def bound(passes: Passes, lam: float = lam) -> Tensor:
            return sizes(passes).bound(constants.trace_xx, lam)

        rows += [
            {
                "network": network.name,
                "id_set": network.id_set,
                "lam": lam,
                "lam_over_balanced": balance,
                "set": name,
                "auroc": value,
                "inactive_id": _inactive(network, "id", bound),
                "inactive": _inactive(network, name, bound),
            }
            for name, value in network.aurocs(bound).items()
        ]
    plain = network.aurocs(lambda p: scores.entropy(p.base.to(torch.float64).softmax(dim=-1)))
    return rows, {
        "balanced_lam": constants.balanced_lam,
        "literal_over_balanced": literal,
        **{f"entropy_{group}": plain[group] for group in network.groups},
    }


def _inactive(network: MeasuredNetwork, name: str, bound: Any) -> float:
    """Of a group ("id", "near", "far") or of one set, over all of its images."""
    chosen = [each for each in network.of("id", "near", "far") if name in (each.group, each.name)]
    dead = torch.cat([bound(each.passes[EPSILON]) <= 0 for each in chosen])
    return float(dead.double().mean())


def _of(rows: list[dict[str, Any]], name: str, key: str) -> tuple[list[float], list[float]]:
    chosen = [row for row in rows if row["set"] == name]
    return [r["lam_over_balanced"] for r in chosen], [100 * r[key] for r in chosen]


def _marks(axes: "Axes", known: dict[str, float]) -> None:
    axes.axvline(1.0, color=COLOURS["green"], lw=1.6, zorder=0)
    axes.axvline(known["literal_over_balanced"], color=COLOURS["purple"], lw=1.6, ls="-.", zorder=0)


def _draw_aurocs(
    axes: "Axes", network: MeasuredNetwork, rows: list[dict[str, Any]], known: dict[str, float]
) -> None:
    _marks(axes, known)
    for group in network.groups:
        style = GROUP_LINES[group]
        x, y = _of(rows, group, "auroc")
        axes.plot(x, y, lw=2.4, **style)
        axes.axhline(100 * known[f"entropy_{group}"], lw=1.3, ls=":", color=style["color"])
    axes.set_title(id_name(network.id_set))
    low, high = axes.get_ylim()
    top = high + 0.13 * (high - low)
    axes.set_ylim(low, top)
    for at, text, colour in (
        (1.0, " balanced λ", "green"),
        (known["literal_over_balanced"], "λ of Alg. 1 ", "purple"),
    ):
        right = text.endswith(" ")
        axes.text(
            at, top, text, color=COLOURS[colour], ha="right" if right else "left", va="top",
            fontsize=11,
        )  # fmt: skip


def _draw_inactive(
    axes: "Axes", network: MeasuredNetwork, rows: list[dict[str, Any]], known: dict[str, float]
) -> None:
    _marks(axes, known)
    x, y = _of(rows, network.groups[0], "inactive_id")
    axes.plot(x, y, color=COLOURS["ink"], lw=2.4)
    for group in network.groups:
        axes.plot(*_of(rows, group, "inactive"), lw=2.0, **GROUP_LINES[group])
    axes.set(ylim=(-3, 103), xlim=(0, max(x)), xlabel="λ in units of the balanced λ")


def _legend(figure: "Figure", axes: "Axes", network: MeasuredNetwork) -> None:
    """Once for all panels, above them."""
    lines: list[tuple[str, dict[str, Any]]] = [("ID", {"color": COLOURS["ink"]})]
    lines += [(f"{group} OOD", GROUP_LINES[group]) for group in network.groups]
    lines.append(("plain entropy (near, far)", {"color": COLOURS["grey"], "ls": ":"}))
    handles = [axes.plot([], [], label=label, **style)[0] for label, style in lines]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _lines(
    network: MeasuredNetwork, rows: list[dict[str, Any]], known: dict[str, float]
) -> list[str]:
    name = id_name(network.id_set)
    found = []
    for group in network.groups:
        x, y = _of(rows, group, "auroc")
        best = max(range(len(y)), key=y.__getitem__)
        found.append(
            f"{name}, {group}: S alone reaches {y[0]:.1f} at λ = 0, {y[best]:.1f} at "
            f"{x[best]:.2f} × balanced; plain entropy {100 * known[f'entropy_{group}']:.1f}"
        )
    found.append(
        f"{name}: the λ of Alg. 1 is {known['literal_over_balanced']:.2f} × the balanced one"
    )
    return found
