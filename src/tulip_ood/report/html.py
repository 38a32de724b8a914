"""HTML and SVG elements as text: everything that is not markup already is escaped."""

import html
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Child", "Markup", "element", "join"]

_COPIED = frozenset({"code", "pre"})  # text that readers copy: every letter stays what it is
_VOID = frozenset({"br", "col", "hr", "img", "meta"})  # elements of HTML that are never closed


class Markup(str):
    """Text that is HTML already and goes in as it is.

    Example:
        >>> element("p", Markup("<b>bold</b>"), " & <plain>")
        '<p><b>bold</b> &amp; &lt;plain&gt;</p>'
    """

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element; strings are escaped, None is nothing, lists are joined.

    Args:
        tag: Its name.
        *children: What is in it.
        **attributes: `class_` stands for class, `stroke_width` for stroke-width; None and False
            are left out.

    Example:
        >>> element("line", x1=0, x2=9.5, class_="grid")
        '<line x1="0" x2="9.5" class="grid"></line>'
        >>> element("img", src="data:,", alt="<script>")
        '<img src="data:," alt="&lt;script&gt;">'
    """
    written = "".join(
        f' {_name(name)}="{html.escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(children, tag in _COPIED)}</{tag}>")


def join(children: Child, copied: bool = False) -> Markup:
    """Everything one after another, escaped where it is not markup.

    A number and its per cent sign stay on one line, but in text that is to be copied.

    Example:
        >>> join(["a < b", Markup("<br>"), None, 3])
        'a &lt; b<br>3'
    """
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        text = str(children)
        if not copied:
            text = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)
        return Markup(html.escape(text, quote=False))
    return Markup("".join(join(child, copied) for child in children))


def _name(name: str) -> str:
    plain = name.rstrip("_")
    return plain if plain == "viewBox" else plain.replace("_", "-")


def _text(value: str | float | bool) -> str:
    if value is True:
        return ""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
