"""Write the tables of README.md and docs/ from the result files under benchmarks/.

    make tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a test checks that every one is
what this script would write.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
DOCUMENTS = ("README.md", "docs/*.md")
METHODS = {
    "msp": "maximum probability",
    "ent": "entropy",
    "mls": "max-logit",
    "ebo": "energy",
    "noise": "noise averaging",
    "tulip": "**TULiP**",
}


def read(path: str) -> Any:
    return json.loads((HERE / path).read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def demo() -> str:
    """The demo, mean over its five seeds."""
    runs = [run["comparison"]["methods"] for run in read("demo/result.json")["runs"]]
    sets = list(runs[0]["ent"]["sets"])

    def row(method: str, name: str) -> list[str]:
        aurocs = [100 * mean(run[method]["sets"][s]["auroc"] for run in runs) for s in sets]
        aurc = 1000 * mean(run[method]["aurc"] for run in runs)
        return [name, *(f"{auroc:.1f}" for auroc in aurocs), f"{aurc:.2f}"]

    head = ["AUROC, mean of five seeds", *sets, "AURC ×10³ ↓"]
    return table(head, [row(method, name) for method, name in METHODS.items()])


def cifar() -> str:
    """Recipes on the two CIFAR networks, mean over noise seeds."""
    names = {
        "ent": "entropy (no TULiP)",
        "paper-1": "`paper`: Alg. 1 to the letter",
        "balanced-1": "`balanced`",
        "self-1": "`self-1`: best mean rank",
        "self-2": "`self` (`self-2`): best mean AUROC",
        "self-2, full search": "`self-2`, searched on everything",
    }
    found = [read(f"tuning/result-{name}.json")["rows"] for name in ("cifar10", "cifar100")]

    def cell(rows: list[dict[str, Any]], name: str, key: str, digits: int = 2) -> str:
        return f"{mean(row[key] for row in rows if row['detector'] == name):.{digits}f}"

    def row(name: str) -> list[str]:
        cells = []
        for rows in found:
            cells.append(f"{cell(rows, name, 'auroc_near')} / {cell(rows, name, 'auroc_far')}")
            cells.append(cell(rows, name, "aurc"))
        cost = "1" if name in ("paper-1", "balanced-1") else "–"
        if "self" in name:
            cost = cell(found[0], name, "cost_in_plain_calibrations", 1)
        return [names[name], *cells, cost]

    head = ["near / far AUROC", "CIFAR-10", "AURC ↓", "CIFAR-100", "AURC ↓", "cost of fitting"]
    return table(head, [row(name) for name in names])


TABLES: dict[str, Callable[[], str]] = {"demo": demo, "cifar": cifar}


def filled(text: str) -> str:
    """A document with all its tables written anew."""

    def write(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", write, text, flags=re.DOTALL)


def documents() -> list[Path]:
    return [path for pattern in DOCUMENTS for path in sorted(HERE.parent.glob(pattern))]


if __name__ == "__main__":
    for document in documents():
        document.write_text(filled(document.read_text()))
