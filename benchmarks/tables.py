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


PUBLISHED = {  # OpenOOD v1.5 leaderboard, CIFAR-10, near / far AUROC
    "msp": (88.03, 90.73),
    "ent": (88.12, 90.84),
    "mls": (87.52, 91.10),
    "ebo": (87.58, 91.21),
    "odin": (82.87, 87.96),
    "gen": (88.20, 91.35),
    "react": (87.11, 90.42),
    "ash-b": (75.27, 78.49),
    "scale": (82.55, 86.39),
    "vim": (88.68, 93.48),
    "knn": (90.64, 92.96),
    "mds": (84.20, 89.72),
    "rmds": (89.80, 92.20),
    "gradnorm": (54.90, 57.55),
    "rankfeat": (79.46, 75.87),
    "tempscale": (88.09, 90.97),
}
NEEDS_DATA = ("mds", "mds++", "rmds", "rmds++", "vim", "knn", "fdbd", "nnguide", "gram", "weiper")


def _methods(track: str) -> str:
    """All methods of one track, mean over networks; later files replace what earlier ones have."""
    found: dict[str, dict[str, tuple[float, float, float, float]]] = {}
    for part in ("base", "more", "mahalanobis"):
        for path in sorted((HERE / "methods").glob(f"result-*-{part}.json")):
            run = json.loads(path.read_text())
            for name, result in run["tracks"].get(track, {"methods": {}})["methods"].items():
                if name == "ent" and part != "base":
                    continue  # there as a yardstick, of fewer images
                near, far = result["near"], result["far"]
                found.setdefault(name, {})[run["network"]] = (
                    100 * near["auroc"],
                    100 * far["auroc"],
                    100 * near["id_flagged_at_95_ood"],
                    1000 * result["aurc"],
                )
    means = {
        name: [mean(column) for column in zip(*runs.values(), strict=True)]
        for name, runs in found.items()
    }
    rows = []
    for name, (near, far, flagged, aurc) in sorted(means.items(), key=lambda item: -item[1][0]):
        theirs = PUBLISHED.get(name)
        if theirs is not None and track == "val" and name in NEEDS_DATA:
            theirs = None  # published on the other track
        shown = "" if theirs is None else f"{theirs[0]:.2f} / {theirs[1]:.2f}"
        gap = "" if theirs is None else f"{near - theirs[0]:+.2f}"
        bold = f"**{name}**" if name == "tulip" else name
        cells = [f"{near:.2f} / {far:.2f}", f"{flagged:.1f}", f"{aurc:.2f}", shown, gap]
        rows.append([bold, *cells])
    head = ["method", "near / far AUROC", "near FPR@95 ↓", "AURC ×10³ ↓", "published", "near gap"]
    return table(head, rows)


def methods_val() -> str:
    """The validation track."""
    return _methods("val")


def methods_train() -> str:
    """The train track."""
    return _methods("train")


def parity() -> str:
    """Every method against every library that has it: equal, or what explains the difference."""
    rows: dict[str, list[str]] = {}
    for row in read("parity/result.json")["rows"]:
        cell = f"{row['library']} {row['difference']:.0e}"
        if row["verdict"] != "equal":
            cell += f" (without the reason {row['without']['difference']:.0e})"
        rows.setdefault(row["method"], []).append(cell)
    return table(["method", "largest difference"], [[m, "; ".join(c)] for m, c in rows.items()])


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "cifar": cifar,
    "methods-val": methods_val,
    "methods-train": methods_train,
    "parity": parity,
}


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
