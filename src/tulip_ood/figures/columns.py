"""A figure of measured networks: one column for each ID set, and small print on what was seen.

Where an ID set has several networks, a thick line is their mean and thin ones are each of them.
"""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, canvas
from tulip_ood.figures.labels import STAND_IN, id_name, of_sets
from tulip_ood.figures.measured import MeasuredNetwork

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["below", "by_set", "columns", "draw_each", "mean_of", "sources", "whose"]

_WIDTH = 13.5  # characters of the small print in an inch


def by_set(networks: Sequence[MeasuredNetwork]) -> dict[str, list[MeasuredNetwork]]:
    """The networks of each ID set, in their order.

    Example:
        >>> two = [MeasuredNetwork(name, "cifar10", (), None) for name in ("s0", "s1")]
        >>> {name: len(own) for name, own in by_set(two).items()}
        {'cifar10': 2}
    """
    if not networks:
        raise InputError("there is no network to draw")
    found: dict[str, list[MeasuredNetwork]] = {}
    for network in networks:
        found.setdefault(network.id_set, []).append(network)
    return found


@contextmanager
def columns(
    networks: Sequence[MeasuredNetwork], lines: int, **how: Any
) -> "Iterator[tuple[Figure, Any]]":
    """A canvas with a grid of panels, a column for each ID set; draw and save inside.

    Args:
        networks: At least one.
        lines: Panels below each other.
        **how: For matplotlib's `subplots`.

    Example:
        >>> with columns([], 2) as (figure, grid):
        ...     pass
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network to draw
    """
    wide = len(by_set(networks))
    with canvas(1.5 + 5.6 * wide, 7.4) as figure:
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
        yield figure, figure.subplots(lines, wide, squeeze=False, **how)


def mean_of(each: Sequence[Sequence[float]]) -> list[float]:
    """The mean line of several.

    Example:
        >>> mean_of([[1.0, 2.0], [3.0, 4.0]])
        [2.0, 3.0]
    """
    return [sum(values) / len(values) for values in zip(*each, strict=True)]


def draw_each(
    axes: "Axes", x: Sequence[float], each: Sequence[Sequence[float]], **style: Any
) -> None:
    """The mean of some lines, and each of them thin and pale if there are several.

    Example:
        >>> with canvas(4, 3) as figure:
        ...     axes = figure.subplots()
        ...     draw_each(axes, [0, 1], [[1.0, 2.0], [3.0, 4.0]], color="black")
        >>> len(axes.lines)
        3
    """
    if len(each) > 1:
        thin = {"color": style["color"], "ls": style.get("ls", "-"), "lw": 0.9, "alpha": 0.4}
        for line in each:
            axes.plot(x, line, zorder=1.5, **thin)
    axes.plot(x, mean_of(each), **style)


def whose(networks: Sequence[MeasuredNetwork]) -> str:
    """Who a line in words is about: an ID set, and how many networks.

    Example:
        >>> two = [MeasuredNetwork(name, "cifar10", (), None) for name in ("s0", "s1")]
        >>> whose(two[:1]), whose(two)
        ('CIFAR-10', 'CIFAR-10, mean of 2 networks')
    """
    name = id_name(networks[0].id_set)
    return name if len(networks) == 1 else f"{name}, mean of {len(networks)} networks"


def sources(networks: Sequence[MeasuredNetwork], *, lines: bool = False) -> str:
    """What a figure of measured networks was drawn from, for the small print.

    Args:
        networks: At least one.
        lines: Whether they were drawn with `draw_each`.

    Example:
        >>> two = [MeasuredNetwork(name, "cifar10", (), 300) for name in ("s0", "s1")]
        >>> sources(two)
        'CIFAR-10 (s0, s1). At most 300 images of each set.'
    """
    told, marked = [], False
    for id_set, own in by_set(networks).items():
        outside = [(e.name, e.group, e.stand_in) for e in own[0].of("near", "far")]
        marked |= any(stand_in is not None for *_, stand_in in outside)
        which = of_sets(outside)
        names = ", ".join(network.name for network in own)
        told.append(f"{id_name(id_set)} ({names}){': ' + which if which else ''}")
    many = {network.limit for network in networks} - {None}
    text = ". ".join(told) + "."
    if many:
        text += f" At most {max(m for m in many if m):,} images of each set."
    if marked:
        text += f" {STAND_IN} stands in for the protocol's own set."
    several = lines and len(networks) > len(told)
    return text + (" Thick lines: the mean of the networks." if several else "")


def below(figure: "Figure", text: str) -> None:
    """Small print under a figure: from which network and which images it comes.

    Example:
        >>> from tulip_ood.figures.canvas import canvas
        >>> with canvas(4, 3) as figure:
        ...     below(figure, "CIFAR-10, 300 images of each set")
        >>> figure.get_supxlabel()
        'CIFAR-10, 300 images of each set'
    """
    width = int(figure.get_figwidth() * _WIDTH)
    wrapped = "\n".join(textwrap.wrap(text, width)) if len(text) > width else text
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=9.5, color=COLOURS["grey"])
