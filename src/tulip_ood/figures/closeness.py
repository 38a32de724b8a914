"""Assumption A5 (closeness) on a real network: the paper's first figure, part (c).

    inf_{x∈X} ‖∇f(z) − ∇f(x)‖_F² ≤ Tr(Θ(z,z) + E_x Θ(x,x) − 2 E_x|Θ(z,x)|)

Both sides are exact (`network.ntk_blocks`) for an X of as many inputs as are given: with the whole
training set the left side could only be smaller.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, MARKERS, Drawn, canvas, need_matplotlib, save
from tulip_ood.network.network import Network
from tulip_ood.network.ntk_blocks import ntk_blocks
from tulip_ood.theory.bound import Closeness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_IMAGES", "draw"]

MOST_IMAGES = 64
_DECADES = 20  # values spread wider than this are drawn on a log scale
_ORDER = ("blue", "vermilion", "green", "purple", "orange", "sky", "ink")


def draw(
    network: Network,
    train: Tensor,
    test: Mapping[str, Tensor],
    *,
    out: str | Path = "figures",
    title: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> Drawn:
    """Draw `closeness` into a folder.

    Args:
        network: With at most 100 outputs an input.
        train: X: inputs from the network's training distribution, at most 64.
        test: Groups of test inputs z by name, at most 64 each.
        out: The folder.
        title: What the network is called in the figure.
        progress: Called with (group, gradients done, gradients in all).

    Example:
        >>> import tempfile
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 3), make_task("classification"))
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawn = draw(network, x, {"near": x + 0.1, "far": 9 * x}, out=folder)
        >>> drawn.facts["near: A5 holds"]
        1.0
    """
    need_matplotlib()
    _check(train, test)
    found: dict[str, Closeness] = {}
    for name, inputs in test.items():

        def say(done: int, of: int, name: str = name) -> None:
            if progress is not None:
                progress(name, done, of)

        blocks = ntk_blocks(network, inputs, train, progress=say)
        found[name] = Closeness(nearest=blocks.nearest, allowed=blocks.allowed)
    facts: dict[str, Any] = {
        f"{name}: A5 holds": float(sides.holds.double().mean()) for name, sides in found.items()
    }
    rows = [
        {"group": name, "input": i, "nearest": left, "allowed": right, "holds": left <= right}
        for name, sides in found.items()
        for i, (left, right) in enumerate(
            zip(sides.nearest.tolist(), sides.allowed.tolist(), strict=True)
        )
    ]
    outputs = network.known_probe.n_outputs
    lines = [
        f"A5 holds for {int(sides.holds.sum())} of {len(sides.holds)} inputs of {name}; the median "
        f"of left side / right side is {float(_ratio(sides).median()):.3g}"
        for name, sides in found.items()
    ]
    with canvas(13.0, 5.8) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
        _draw_sides(left, found)
        _draw_ratios(right, found)
        of = f"{title}, " if title else ""
        figure.suptitle(
            f"Closeness (A5): {of}|X| = {len(train)}, o = {outputs}",
            x=0.01, ha="left", fontsize=13, color=COLOURS["grey"],
        )  # fmt: skip
        return save(figure, "closeness", out, rows, {**facts, "train": len(train)}, lines)


def _check(train: Tensor, test: Mapping[str, Tensor]) -> None:
    if not test or len(test) > len(_ORDER):
        raise InputError(f"give 1 to {len(_ORDER)} groups of test inputs, got {len(test)}")
    for name, inputs in {"training inputs": train, **test}.items():
        if not 1 <= len(inputs) <= MOST_IMAGES:
            raise InputError(f"{name}: expected 1 to {MOST_IMAGES} inputs, got {len(inputs)}")


def _ratio(sides: Closeness) -> Tensor:
    """Left by right side; both are 0 for a network whose gradients are all alike."""
    tiny = torch.finfo(torch.float64).tiny
    return sides.nearest / sides.allowed.clamp_min(tiny)


def _style(number: int) -> dict[str, Any]:
    return {
        "marker": MARKERS[number],
        "color": COLOURS[_ORDER[number]],
        "edgecolors": "white",
        "linewidths": 0.6,
        "alpha": 0.85,
    }


def _draw_sides(axes: "Axes", found: Mapping[str, Closeness]) -> None:
    values = torch.cat([torch.cat([s.nearest, s.allowed]) for s in found.values()])
    high = float(values.max()) * 1.15 or 1.0
    scale = "log" if high > _DECADES * float(values.median()) else "linear"
    low = float(values[values > 0].min()) / 1.6 if scale == "log" else 0.0
    axes.fill_between([low, high], low, [low, high], color=COLOURS["sky"], alpha=0.18, lw=0)
    axes.plot([low, high], [low, high], color=COLOURS["grey"], lw=1.4)
    for number, sides in enumerate(found.values()):
        # An input that is also in X has 0 on the left; on a log scale it lies on the edge.
        axes.scatter(
            sides.allowed.clamp_min(low), sides.nearest.clamp_min(low), s=38, **_style(number)
        )
    axes.set(xscale=scale, yscale=scale, xlim=(low, high), ylim=(low, high), aspect="equal")
    if scale == "linear":
        axes.ticklabel_format(style="sci", scilimits=(-2, 4), useMathText=True)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter("")
    axes.set_xlabel(r"right side: Tr$(\Theta_{zz} + E\,\Theta_{xx} - 2\,E|\Theta_{zx}|)$")
    axes.set_ylabel(r"left side: $\inf_x \|\nabla f(z) - \nabla f(x)\|_F^2$")
    axes.text(
        0.97, 0.04, "A5 holds", transform=axes.transAxes, ha="right", color=COLOURS["blue"]
    )  # fmt: skip
    axes.text(0.03, 0.93, "A5 fails", transform=axes.transAxes, color=COLOURS["vermilion"])
    axes.set_title("(a) both sides, one mark an input")


def _draw_ratios(axes: "Axes", found: Mapping[str, Closeness]) -> None:
    top = max(1.0, *(float(_ratio(sides).max()) for sides in found.values()))
    axes.axvspan(0, 1, color=COLOURS["sky"], alpha=0.18, lw=0)
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
