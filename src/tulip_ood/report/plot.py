"""The frame that every chart stands in: axes, grid, labels, and words for those who cannot see."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tulip_ood.report.html import Child, Markup, element

__all__ = ["Plot", "line_path"]


@dataclass(frozen=True)
class Plot:
    """A chart's area: what lies in it is drawn between `left`, `top`, `right` and `bottom`.

    Attributes:
        width: Of the whole picture, in pixels.
        height: Of the whole picture.
        left: Where the area begins.
        top: Where it begins, from above.
        right: Where it ends.
        bottom: Where it ends, from above.

    Example:
        >>> Plot.sized(340, 260).bottom
        218.0
    """

    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float

    @staticmethod
    def sized(width: float, height: float, *, left: float = 56.0, top: float = 12.0) -> "Plot":
        """With room for the labels below and to the left."""
        return Plot(width, height, left, top, width - 20.0, height - 42.0)

    def draw(
        self,
        title: str,
        description: str,
        marks: Iterable[Child],
        *,
        x: Sequence[tuple[float, str]] = (),
        y: Sequence[tuple[float, str]] = (),
        x_label: str = "",
        y_label: str = "",
    ) -> Markup:
        """The chart as one `svg` element.

        Args:
            title: Its name, read out first.
            description: What it shows, for those who cannot see it.
            marks: What is drawn in the area.
            x: Places on the horizontal axis, in pixels, and what is written there.
            y: The same for the vertical axis.
            x_label: What the horizontal axis means.
            y_label: What the vertical axis means.
        """
        return element(
            "svg",
            element("title", title),
            element("desc", description),
            [self._x_tick(place, text) for place, text in x],
            [self._y_tick(place, text) for place, text in y],
            element(
                "line", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom, class_="axis"
            ),
            marks,
            self._label(x_label, (self.left + self.right) / 2, self.height - 6),
            self._label(y_label, 10, (self.top + self.bottom) / 2, turned=True),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=f"{title}. {description}",
            class_="chart",
        )

    def _x_tick(self, place: float, text: str) -> Markup:
        line = element("line", x1=place, x2=place, y1=self.top, y2=self.bottom, class_="grid")
        words = element(
            "text", text, x=place, y=self.bottom + 16, class_="tick", text_anchor="middle"
        )
        return Markup(line + words)

    def _y_tick(self, place: float, text: str) -> Markup:
        line = element("line", x1=self.left, x2=self.right, y1=place, y2=place, class_="grid")
        words = element(
            "text", text, x=self.left - 6, y=place + 3.5, class_="tick", text_anchor="end"
        )
        return Markup(line + words)

    def _label(self, text: str, x: float, y: float, *, turned: bool = False) -> Markup:
        if not text:
            return Markup("")
        turn = f"rotate(-90 {x:g} {y:g})" if turned else None
        return element("text", text, x=x, y=y, class_="label", text_anchor="middle", transform=turn)


def line_path(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path through points; those on a straight line between others are left out.

    Example:
        >>> line_path([(0, 0), (1, 0), (2, 0), (2, 5)])
        'M0 0L2 0L2 5'
    """
    kept: list[tuple[float, float]] = []
    for x, y in points:
        point = (round(x, 1), round(y, 1))
        if kept and kept[-1] == point:
            continue
        while len(kept) > 1 and _straight(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(kept))


def _straight(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on the way from a to c, along an axis."""
    return (a[0] == b[0] == c[0] and (b[1] - a[1]) * (c[1] - b[1]) >= 0) or (
        a[1] == b[1] == c[1] and (b[0] - a[0]) * (c[0] - b[0]) >= 0
    )
