"""Assumption A5 (closeness) on real networks: the paper's first figure, part (c).

A row for each network: both sides for every input, and how much of the right side the left one
takes. `closeness_sides` measures them.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, MARKERS, Drawn, canvas, save
from tulip_ood.figures.closeness_sides import Sides
from tulip_ood.theory.bound import Closeness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_WIDE = 20  # values spread wider than this are drawn on a log scale
_ORDER = ("ink", "blue", "green", "vermilion", "orange", "purple", "sky")


def draw(measured: Sequence[Sides], out: str | Path = "figures") -> Drawn:
    """Draw `closeness` into a folder.

    Args:
        measured: One row of panels for each network.
        out: The folder.

    Example:
        >>> import tempfile
        >>> two = Closeness(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawn = draw([Sides("net", 10, 64, {"near": two})], folder)
        >>> drawn.facts
        {'net, near: A5 holds': 0.5}
    """
    if not measured:
        raise InputError("there is no network to draw")
    rows = [row for sides in measured for row in _rows(sides)]
    facts = {
        f"{sides.title}, {name}: A5 holds": float(each.holds.double().mean())
        for sides in measured
        for name, each in sides.groups.items()
    }
    with canvas(13.0, 0.4 + 5.4 * len(measured)) as figure:
        figure.set_layout_engine("constrained", h_pad=0.12)
        rows_of_panels = figure.subfigures(len(measured), squeeze=False)[:, 0]
        for sides, part in zip(measured, rows_of_panels, strict=True):
            left, right = part.subplots(1, 2, width_ratios=(1.0, 1.1))
            _draw_sides(left, sides.groups)
            _draw_ratios(right, sides.groups)
            part.suptitle(
                f"{sides.title}: |X| = {sides.train} training images, o = {sides.outputs}",
                x=0.01, ha="left", fontsize=13, color=COLOURS["grey"],
            )  # fmt: skip
        return save(figure, "closeness", out, rows, facts, _lines(measured))


def _rows(sides: Sides) -> list[dict[str, Any]]:
    return [
        {
            "network": sides.title,
            "group": name,
            "input": i,
            "nearest": left,
            "allowed": right,
            "holds": left <= right,
        }
        for name, each in sides.groups.items()
        for i, (left, right) in enumerate(
            zip(each.nearest.tolist(), each.allowed.tolist(), strict=True)
        )
    ]


def _lines(measured: Sequence[Sides]) -> list[str]:
    return [
        f"{sides.title}: A5 holds for {int(each.holds.sum())} of {len(each.holds)} inputs of "
        f"{name}; the median of left side / right side is {float(_ratio(each).median()):.3g}"
        for sides in measured
        for name, each in sides.groups.items()
    ]


def _ratio(sides: Closeness) -> Tensor:
    """Left by right side; both are 0 for a network whose gradients are all alike."""
    tiny = torch.finfo(torch.float64).tiny
    return sides.nearest / sides.allowed.clamp_min(tiny)


def _style(number: int) -> dict[str, Any]:
    return {
        "marker": MARKERS[number],
        "color": COLOURS[_ORDER[number]],
        "linewidths": 0,
        "alpha": 0.7,
    }


def _draw_sides(axes: "Axes", found: Mapping[str, Closeness]) -> None:
    values = torch.cat([torch.cat([s.nearest, s.allowed]) for s in found.values()])
    high = float(values.max()) * 1.15 or 1.0
    wide = high > _WIDE * float(values.median())
    low = float(values[values > 0].min()) / 1.6 if wide else 0.0
    # Small numbers at the axis, and their unit in its label.
    power = 0 if wide else math.floor(math.log10(high))
    unit, told = 10.0**power, f" / $10^{{{power}}}$" if power else ""
    ends = (low / unit, high / unit)
    axes.fill_between(ends, ends[0], ends, color=COLOURS["sky"], alpha=0.14, lw=0)
    axes.plot(ends, ends, color=COLOURS["grey"], lw=1.4)
    for number, sides in enumerate(found.values()):
        # An input that is also in X has 0 on the left; on a log scale it lies on the edge.
        x, y = (side.clamp_min(low) / unit for side in (sides.allowed, sides.nearest))
        axes.scatter(x, y, s=36, **_style(number))
    scale = "log" if wide else "linear"
    axes.set(xscale=scale, yscale=scale, xlim=ends, ylim=ends, aspect="equal")
    if wide:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter("")
    axes.set_xlabel(r"right side: Tr$(\Theta_{zz} + E\,\Theta_{xx} - 2\,E|\Theta_{zx}|)$" + told)
    axes.set_ylabel(r"left side: $\inf_x \|\nabla f(z) - \nabla f(x)\|_F^2$" + told)
    axes.text(
        0.97, 0.04, "A5 holds", transform=axes.transAxes, ha="right", color=COLOURS["blue"]
    )  # fmt: skip
    axes.text(0.03, 0.93, "A5 fails", transform=axes.transAxes, color=COLOURS["vermilion"])
    axes.set_title("(a) both sides, one mark an input")


def _draw_ratios(axes: "Axes", found: Mapping[str, Closeness]) -> None:
    top = max(1.0, *(float(_ratio(sides).max()) for sides in found.values()))
    axes.axvspan(0, 1, color=COLOURS["sky"], alpha=0.14, lw=0)
    axes.axvline(1, color=COLOURS["grey"], lw=1.4)
    for number, sides in enumerate(found.values()):
        ratio = _ratio(sides).sort().values
        # Side by side in rising order, so that equal values do not hide each other.
        place = number + torch.linspace(-0.28, 0.28, len(ratio))
        axes.scatter(ratio, place, s=30, **_style(number))
        middle = float(ratio.median())
        axes.plot([middle, middle], [number - 0.38, number + 0.38], color=COLOURS["ink"], lw=2.5)
    labels = [
        f"{name}\nholds for {math.floor(100 * float(sides.holds.double().mean()))} %"
        for name, sides in found.items()
    ]
    axes.set_yticks(range(len(found)), labels)
    axes.set(xlim=(0, 1.08 * top), ylim=(len(found) - 0.4, -0.6))
    axes.set_xlabel("left side / right side (line: median)")
    axes.set_title("(b) how much of it is used")
