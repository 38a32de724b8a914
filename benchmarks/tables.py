"""Write the tables of README.md and docs/ from the result files under benchmarks/.

    make tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a test checks that every one is
what this script would write.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from auto_tables import AUTO_TABLES
from bench_tables import BENCH_TABLES
from cluster_tables import CLUSTER_TABLES
from figure_tables import FIGURE_TABLES
from reading import read, table
from speed_tables import SPEED_TABLES

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


def scope() -> str:
    """AUROC of every scope on pseudo-OOD and on real sets, and what is chosen."""
    rows = []
    for name in ("cifar10", "cifar100"):
        found = read(f"scope/result-{name}.json")
        most = str(found["samples"])
        for scope, row in found["scopes"].items():
            chosen = scope == found["auto_scope"]
            own, all_ = (row["real"][m] for m in (str(row["auto_samples"]), most))
            rows.append(
                [
                    f"{name}, {f'**{scope}**' if chosen else scope}",
                    f"{100 * row['share']:.1f} %",
                    f"{row['epsilon']:g}",
                    f"{row['pseudo_auroc']:.1f}",
                    f"{row['loss']:.1f} ({row['loss_low']:.1f} to {row['loss_high']:.1f})",
                    f"{all_['near']:.1f} / {all_['far']:.1f} (M {most})",
                    f"{own['near']:.1f} / {own['far']:.1f} (M {row['auto_samples']})",
                ]
            )
    head = ["network, scope", "repeated", "ε", "AUROC, pseudo-OOD", "loss", "near / far, most M"]
    return table([*head, "near / far, M chosen"], rows)


def cifar() -> str:
    """Recipes on the two CIFAR networks, mean over noise seeds; `Auto` with one."""
    names = {
        "ent": "entropy (no TULiP)",
        "paper-1": "`paper`: Alg. 1 to the letter",
        "balanced-1": "`balanced`",
        "self-1": "`self-1`: best mean rank",
        "self-2": "`self` (`self-2`): best mean AUROC",
        "self-2, full search": "`self-2`, searched on everything",
        "auto": "`Auto` (`auto-3`)",
        "auto, no noise": "`Auto(n_samples=0)`, two passes",
    }
    fits = read("auto/result-cost.json")["cifar10 resnet18"]["rows"]
    costs = {"auto": fits["auto"], "auto, no noise": fits["auto, without noise"]}
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
        if name in costs:
            cost = f"{costs[name]['fit, calibrations']:.1f}"  # in time: its passes differ
        return [names[name], *cells, cost]

    head = ["near / far AUROC", "CIFAR-10", "AURC ↓", "CIFAR-100", "AURC ↓", "cost of fitting"]
    return table(head, [row(name) for name in names])


def imports() -> str:
    """What importing costs beyond PyTorch."""
    found = read("imports/result.json")
    rows = [
        [f"`{name}`", f"{times['cpu']:.2f} s"] for name, times in found["beyond torch, s"].items()
    ]
    return table(["imported", "beyond `import torch`"], rows)


def parity() -> str:
    """Every method against every library that has it: equal, or what explains the difference."""
    rows: dict[str, list[str]] = {}
    for row in read("parity/result.json")["rows"]:
        cell = f"{row['library']} {row['difference']:.0e}"
        if row["verdict"] != "equal":
            cell += f" (without the reason {row['without']['difference']:.0e})"
        rows.setdefault(row["method"], []).append(cell)
    return table(["method", "largest difference"], [[m, "; ".join(c)] for m, c in rows.items()])


def serving() -> str:
    """10,000 requests from 64 clients on loopback, on a machine that others used as well."""
    found = read("serving/load.json")
    latency = found["latency_ms"]
    rows = [
        ["requests, clients", f"{found['requests']:,}, {found['clients']}"],
        ["lost or wrong answers", f"{found['lost'] + found['wrong']}"],
        ["largest difference from the local score", f"{found['largest_difference']:.0e}"],
        ["images in a batch, mean", f"{found['images_per_batch']:.1f}"],
        ["processor time of the server for an image", f"{found['cpu_ms_per_image']:.1f} ms"],
        ["requests a second", f"{found['requests_per_second']}"],
        ["latency p50, p99", f"{latency['p50']:.0f} ms, {latency['p99']:.0f} ms"],
        ["growth of memory from the second fifth on", f"{100 * found['memory']['growth']:.1f} %"],
        ["load of the machine (2 cores) by all who used it", f"{found['machine']['load']:.0f}"],
    ]
    return table(["small network on digits, with a shadow and a log", "measured"], rows)


EXAMPLES = ("text", "tabular", "regression", "segmentation")


def with_range(values: list[float], digits: int = 1) -> str:
    """Mean, and the lowest and highest, in percent."""
    low, high = (f"{100 * edge(values):.{digits}f}" for edge in (min, max))
    return f"{100 * mean(values):.{digits}f} ({low}–{high})"


def example(name: str) -> str:
    """One example over its seeds: AUROC, and what is refused at the 5 % threshold."""
    runs = [run["methods"] for run in read(f"examples/result-{name}.json")["runs"]]
    rows = []
    for method, first in runs[0].items():
        label = f"**{method}**" if method.lower().startswith("tulip") else method
        kept = f"{100 * mean(run[method]['kept'] for run in runs):.1f}"
        cells = [
            f"{with_range([run[method]['auroc'][s] for run in runs])}, "
            f"{100 * mean(run[method]['refused'][s] for run in runs):.0f} %"
            for s in first["auroc"]
        ]
        rows.append([label, kept, *cells])
    return table(["AUROC (lowest–highest), refused", "ID kept, %", *runs[0][method]["auroc"]], rows)


def examples() -> str:
    """What else each example measures, and what it costs."""
    rows = []
    for name in EXAMPLES:
        found = read(f"examples/result-{name}.json")
        first = found["runs"][0]
        facts = [key for key in first if key not in ("seed", "cpu_s", "methods")]
        told = "; ".join(f"{f}: {with_range([run[f] for run in found['runs']])}" for f in facts)
        rows.append([f"`{name}.py`", told, f"{found['median_cpu_s']:.0f}"])
    return table(["example", "in %, mean (lowest–highest) of five seeds", "CPU seconds"], rows)


def architectures() -> str:
    """Which networks fitting, the scopes and the export were run on."""
    rows = []
    for entry in read("architectures/result.json")["networks"]:
        scopes = [
            f"{100 * one['perturbed']:.3g} %" if one["works"] else "–"
            for one in entry["scopes"].values()
        ]
        made = entry["export"]
        end = [f"{made['gap']:.0e}", f"{made['cost']:.2g}"] if made["works"] else ["refused", "–"]
        name = f"{entry['library']} {entry['network'].removesuffix('Classification')}"
        rows.append([name, f"{entry['parameters'] / 1e6:.3g} M", *scopes, *end])
    head = ["network", "parameters", "head", "last-block", "last-stage", "all", "ONNX: gap", "cost"]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "cifar": cifar,
    "scope": scope,
    "imports": imports,
    "parity": parity,
    "serving": serving,
    "examples": examples,
    **{f"example-{name}": partial(example, name) for name in EXAMPLES},
    "architectures": architectures,
    **AUTO_TABLES,
    **BENCH_TABLES,
    **CLUSTER_TABLES,
    **FIGURE_TABLES,
    **SPEED_TABLES,
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
