"""Result files, and tables in Markdown."""

import json
from pathlib import Path
from typing import Any

__all__ = ["read", "table"]

HERE = Path(__file__).parent


def read(path: str) -> Any:
    return json.loads((HERE / path).read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))
