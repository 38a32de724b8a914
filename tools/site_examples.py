"""`Example:` in our docstrings becomes the section that mkdocstrings shows as code; for griffe."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rewrites the heading of every docstring's doctest."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that griffe finds."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", text)
