"""A figure of measured networks: one column for each, and small print that says what was seen."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, canvas
from tulip_ood.figures.labels import STAND_IN, id_name, of_sets
from tulip_ood.figures.measured import MeasuredNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["below", "columns", "sources"]

_WIDTH = 13.5  # characters of the small print in an inch


@contextmanager
def columns(
    networks: Sequence[MeasuredNetwork], lines: int, **how: Any
) -> "Iterator[tuple[Figure, Any]]":
    """A canvas with a grid of panels, a column for each network; draw and save inside.

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
    if not networks:
        raise InputError("there is no network to draw")
    with canvas(1.5 + 5.6 * len(networks), 7.4) as figure:
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
        yield figure, figure.subplots(lines, len(networks), squeeze=False, **how)


def sources(networks: Sequence[MeasuredNetwork]) -> str:
    """What a figure of measured networks was drawn from, for the small print.

    Example:
        >>> sources([MeasuredNetwork("s0", "cifar10", (), 300)])
        'CIFAR-10 (s0). At most 300 images of each set.'
    """
    told, marked = [], False
    for network in networks:
        outside = [(e.name, e.group, e.stand_in) for e in network.of("near", "far")]
        marked |= any(stand_in is not None for *_, stand_in in outside)
        which = of_sets(outside)
        name = id_name(network.id_set)
        told.append(f"{name} ({network.name}){': ' + which if which else ''}")
    many = {network.limit for network in networks} - {None}
    text = ". ".join(told) + "."
    if many:
        text += f" At most {max(m for m in many if m):,} images of each set."
    return text + (f" {STAND_IN} stands in for the protocol's own set." if marked else "")


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
