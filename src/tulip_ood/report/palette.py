"""Which method is drawn how: colour, dash and width, told apart without colour too."""

from collections.abc import Sequence

from tulip_ood.benchmark.verdict import in_words
from tulip_ood.report.html import Markup, element

__all__ = ["legend", "series_class", "swatch"]

_OTHERS = 6  # further methods share one grey


def series_class(methods: Sequence[str], name: str, focus: str, baseline: str | None) -> str:
    """The CSS class of a method's line; `style.css` says how it looks.

    Example:
        >>> series_class(["msp", "ent", "tulip"], "tulip", "tulip", "ent")
        'series focus'
        >>> series_class(["msp", "ent", "tulip"], "msp", "tulip", "ent")
        'series s1'
    """
    if name == focus:
        return "series focus"
    if name == baseline:
        return "series baseline"
    others = [method for method in methods if method not in (focus, baseline)]
    place = others.index(name) + 1
    return f"series s{place}" if place <= _OTHERS else "series rest"


def swatch(class_: str) -> Markup:
    """A short piece of the line, for a legend.

    Example:
        >>> swatch("series focus").startswith("<svg")
        True
    """
    line = element("line", x1=1, x2=27, y1=6, y2=6, class_=class_)
    return element(
        "svg",
        line,
        xmlns="http://www.w3.org/2000/svg",
        viewBox="0 0 28 12",
        class_="swatch",
        aria_hidden="true",
    )


def legend(
    methods: Sequence[str], focus: str, baseline: str | None, notes: dict[str, str] | None = None
) -> Markup:
    """All methods with their lines; a note stands behind the name.

    Example:
        >>> "energy" in legend(["ebo", "tulip"], "tulip", None)
        True
    """
    notes = notes or {}
    return element(
        "ul",
        [
            element(
                "li",
                swatch(series_class(methods, name, focus, baseline)),
                element("span", in_words(name)),
                element("span", notes[name], class_="number") if name in notes else None,
                data_method=name,
            )
            for name in methods
        ],
        class_="legend",
    )
