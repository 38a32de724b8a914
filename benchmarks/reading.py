"""Result files, and tables in Markdown."""

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["read", "table"]

HERE = Path(__file__).parent


def read(path: str) -> Any:
    return json.loads((HERE / path).read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    """Numbers stand below one another at the right; words, as in the first column, at the left."""
    columns = list(zip(*rows, strict=True))[1:]
    ruler = ["---", *("---" if _words(column) else "---:" for column in columns)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def _words(column: tuple[str, ...]) -> bool:
    """Whether most cells of a column hold a word."""
    return 2 * sum(bool(re.search("[A-Za-z]{4}", cell)) for cell in column) > len(column)
