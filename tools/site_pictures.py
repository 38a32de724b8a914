"""Every picture opens in its full size when it is touched; a hook of mkdocs.

A figure is drawn for a page of a paper: on a phone its letters are too small to be read.
"""

import re
from typing import Any

WITHIN = r"""(?:[^>"]|"[^"]*")"""
PICTURE = re.compile(rf"""<img\b{WITHIN}*?\bsrc="([^"]+)"{WITHIN}*>""")


def linked(html: str) -> str:
    """A page's HTML with a link around each picture."""
    return PICTURE.sub(lambda found: f'<a class="picture" href="{found[1]}">{found[0]}</a>', html)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for every page; links to pictures are those of the page by now."""
    return linked(html)
