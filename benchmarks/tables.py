"""Write the tables of README.md and docs/ from the result files under benchmarks/.

    make tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a test checks that every one is
what this script would write.
"""

import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pyarrow.parquet as pq

from tulip_ood.benchmark.published import FITTED_ON_TRAINING_DATA, known_for
from tulip_ood.detectors.registry import METHODS as REGISTRY

sys.path.insert(0, str(Path(__file__).parent))
from auto_tables import AUTO_TABLES
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


# Names in the documents for what `tulip bench` calls by its settings.
LABELS = {
    "tulip": "**tulip**",
    "tulip[recipe=balanced]": "tulip, `balanced`",
    "tulip[lam=0,recipe=balanced]": "tulip, `balanced`, λ = 0",
    "tulip-norm[recipe=balanced]": "tulip, `balanced`, D := ‖f(z)‖",
    "tulip[recipe=paper]": "tulip, `paper`",
    "tulip[recipe=paper,tune=ood]": "tulip, `paper`, J_scaling searched on TIN",
}
Numbers = dict[str, dict[str, float]]  # by method and network


@cache
def results(name: str) -> list[dict[str, Any]]:
    """The rows of a benchmark's results."""
    rows: list[dict[str, Any]] = pq.read_table(
        HERE / "results" / name / "results.parquet"
    ).to_pylist()
    return rows


def numbers(name: str, track: str, metric: str, group: str, ood_set: str | None) -> Numbers:
    found: Numbers = {}
    for row in results(name):
        where = (row["track"], row["metric"], row["group"], row["ood_set"])
        if where == (track, metric, group, ood_set):
            found.setdefault(row["method"], {})[row["network"]] = row["value"]
    most = max(map(len, found.values()))
    return {method: values for method, values in found.items() if len(values) == most}


def spread(values: dict[str, float], factor: float = 100, digits: int = 2) -> str:
    own = [factor * value for value in values.values()]
    if len(own) == 1:
        return f"{own[0]:.{digits}f}"
    return f"{mean(own):.{digits}f} ± {pstdev(own):.{digits}f}"


def bench(name: str, track: str) -> str:
    """All methods of one track, mean and deviation over networks, the best near AUROC first."""
    near, far = (numbers(name, track, "auroc", group, None) for group in ("near", "far"))
    flagged = numbers(name, track, "id_flagged_at_95_ood", "near", None)
    aurc = numbers(name, track, "aurc", "id", "")
    id_set = results(name)[0]["id_set"]
    rows = []
    for method in sorted(near, key=lambda m: -mean(near[m].values())):
        known = known_for(id_set, method)
        if known is not None and (
            not known.same or (track == "val" and method in FITTED_ON_TRAINING_DATA)
        ):
            known = None  # published for another recipe, or on the other track
        gap, shown = "", ""
        if known is not None:
            shown = f"{known.numbers['near']:.2f} / {known.numbers['far']:.2f}"
            gap = f"{100 * mean(near[method].values()) - known.numbers['near']:+.2f}"
        rows.append(
            [
                LABELS.get(method, method),
                spread(near[method]),
                spread(far[method]),
                spread(flagged[method], digits=1),
                spread(aurc[method], 1000),
                shown,
                gap,
            ]
        )
    head = ["method", "near AUROC", "far AUROC", "near FPR@95 ↓", "AURC ×10³ ↓", "published", "gap"]
    return table(head, rows)


def networks() -> str:
    """The trained networks."""
    rows = [
        [n["network"], n["best_epoch"], f"{100 * n['accuracy']:.2f}"]
        for n in read("training/result.json")["networks"]
    ]
    return table(["network", "best of 100 epochs", "test accuracy, %"], rows)


def imagenet() -> str:
    """The runner on images as large as ImageNet's."""
    names = {
        "small": "a very small network",
        "waiting": "one that leaves the CPU free (sleeps)",
        "resnet18": "ResNet-18 on the CPU",
    }
    rows = []
    for key, found in read("imagenet/result.json")["networks"].items():
        seconds = found["seconds"]
        rows.append(
            [
                names[key],
                f"{found['images']:,}",
                f"{found['images_per_s']:.1f}",
                f"{100 * found['reading_share']:.0f} %",
                f"{100 * found['decode_share_of_cpu']:.0f} %",
                f"{100 * seconds['both'] / min(seconds['reading'], seconds['passes']):.0f} %",
                f"{found['rss_mb']['peak']:,} MB",
            ]
        )
    head = ["network", "images", "images/s", "time reading", "CPU decoding", "overlap", "peak"]
    return table(head, rows)


STEPS = (
    "ent",
    "noise",
    "tulip[lam=0,recipe=balanced]",
    "tulip-norm[recipe=balanced]",
    "tulip[recipe=balanced]",
    "tulip",
    "tulip+react",
    "tulip+scale",
    "tulip&knn",
    "auto",
    "tulip[recipe=paper]",
    "tulip[recipe=paper,tune=ood]",
)


def steps() -> str:
    """What each step brings, on both ID sets."""
    names = ("cifar10", "cifar100")
    cells: dict[str, list[str]] = {method: [] for method in STEPS}
    for name in names:
        near, far = (numbers(name, "val", "auroc", group, None) for group in ("near", "far"))
        aurc = numbers(name, "val", "aurc", "id", "")
        for method in STEPS:
            if method not in near:
                cells[method] += ["", ""]
                continue
            pair = " / ".join(f"{100 * mean(part[method].values()):.2f}" for part in (near, far))
            cells[method] += [pair, f"{1000 * mean(aurc[method].values()):.2f}"]
    head = ["near / far AUROC", "CIFAR-10", "AURC ↓", "CIFAR-100", "AURC ↓"]
    return table(head, [[LABELS.get(method, method), *cells[method]] for method in STEPS])


CHOICES = (
    "msp",
    "ent",
    "gen",
    "ebo",
    "scale",
    "knn",
    "tulip[recipe=balanced]",
    "tulip",
    "tulip+scale",
    "tulip&knn",
    "auto",
)


def choosing() -> str:
    """What a user may choose between: passes for an input, and how good on both ID sets."""
    cells: dict[str, list[str]] = {
        # The second part of a sum looks at the base pass of the first.
        method: [str(REGISTRY[re.split(r"[\[+&]", method)[0]].passes)]
        for method in CHOICES
    }
    for name in ("cifar10", "cifar100"):
        near, far = (numbers(name, "val", "auroc", group, None) for group in ("near", "far"))
        aurc = numbers(name, "val", "aurc", "id", "")
        for method in CHOICES:
            pair = " / ".join(f"{100 * mean(part[method].values()):.1f}" for part in (near, far))
            cells[method] += [pair, f"{1000 * mean(aurc[method].values()):.1f}"]
    head = ["method", "passes", "CIFAR-10 near / far", "AURC ↓", "CIFAR-100 near / far", "AURC ↓"]
    return table(head, [[LABELS.get(method, method), *cells[method]] for method in CHOICES])


def imports() -> str:
    """What importing costs beyond PyTorch."""
    found = read("imports/result.json")
    rows = [
        [f"`{name}`", f"{times['cpu']:.2f} s"] for name, times in found["beyond torch, s"].items()
    ]
    return table(["imported", "beyond `import torch`"], rows)


def shift() -> str:
    """Right answers refused on shifted ID images."""
    methods = ("msp", "ent", "ebo", "scale", "knn", "gram", "ensemble", "noise", "tulip")
    right = numbers("cifar10", "val", "correct_refused", "shifted", "cifar10c")
    inside = numbers("cifar10", "val", "false_alarms", "id", "")
    rows = [
        [LABELS.get(m, m), spread(inside[m], digits=1), spread(right[m], digits=1)] for m in methods
    ]
    return table(["method", "ID test refused, %", "right and refused, %"], rows)


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


def says(name: str) -> str:
    """What a figure says, as the command printed it, and the command."""
    found = read("figures/result.json")[name]
    return "\n".join([*(f"- {line}" for line in found["says"]), f"- `{found['command']}`"])


def adds() -> str:
    """What each part of TULiP is worth: differences to the whole, in points."""
    names = {
        "ent": "entropy",
        "noise-input": "input noise, as many passes",
        "noise": "noise averaging alone",
        "tulip[lam=0,recipe=balanced]": "λ = 0",
        "tulip-norm[recipe=balanced]": "D := ‖f(z)‖",
        "tulip": "self-tuned",
    }
    found = pq.read_table(HERE / "figures" / "what-the-bound-adds.parquet").to_pylist()
    by = {(r["method"], r["source"], r["id_set"], r["group"]): r for r in found}

    def cell(*key: str) -> str:
        row = by.get(key)
        if row is None:
            return ""
        return (
            f"{100 * row['difference']:+.2f} ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})"
        )

    places = [(id_set, group) for id_set in ("cifar10", "cifar100") for group in ("near", "far")]
    rows = [
        [f"{words}, {source}", *(cell(method, source, *place) for place in places)]
        for method, words in names.items()
        for source in ("benchmark", "at hand")
        if any((method, source, *place) in by for place in places)
    ]
    head = ["less TULiP (`balanced`)", *(f"{SETS[i]} {group}" for i, group in places)]
    return table(head, rows)


SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FIGURES = (
    "bound-regression",
    "bound-classification",
    "closeness",
    "lambda-sweep",
    "bound-histogram",
    "msp-shift",
    "enhancement",
    "ablation",
    "timing",
    "table-1",
    "table-2",
    "balanced-lambda",
    "self-tuning",
)


def cluster_faults() -> str:
    """What died in the middle of a job on Ray, and what became of the table."""
    found = read("cluster/faults.json")
    killed = found["job"]["kept_rows_when_killed"]
    when = " and ".join(f"{rows:,}" for rows in killed)
    words = {
        "undisturbed": "nothing (against the local engine)",
        "workers": f"{found['workers']['killed']} times a worker, one after another",
        "node": "one of two nodes, with its workers",
        "job": f"the whole job, {len(killed)} times (with {when} rows done)",
    }
    rows = []
    for name, what in words.items():
        row = found[name]
        once = f"{row['rows']:,}, {'each once' if row['every_row_once'] else 'NOT each once'}"
        apart = f"{row['largest_difference_of_the_range']:.0e}".replace("0e+00", "0")
        rows.append([what, once, apart, f"{row['seconds']:.0f}"])
    return table(["what was killed", "rows", "scores apart, of their range", "seconds"], rows)


def cluster_bad() -> str:
    """What becomes of files that are not what they seem."""
    told = read("cluster/bad_input.json")["kinds"]["told"]
    return table(["file", "row"], [[f"`{name}`", what] for name, what in sorted(told.items())])


def cluster_plan() -> str:
    """A billion images."""
    head = ["network", "GPUs", "images/s", "hours", "decoding cores", "Gbit/s", "dollars"]
    keys = ("gpus", "images_per_s", "hours", "decoding_cores", "gbit_per_s_read", "dollars")
    rows = [
        [row["network"], *(f"{row[key]:,.{int(key == 'hours')}f}" for key in keys)]
        for row in read("cluster/plan.json")["networks"]
    ]
    return table(head, rows)


def cluster_breaks() -> str:
    """Where each thing ends that there is only one of."""
    plan = read("cluster/plan.json")
    ends, storage = plan["breaks"], plan["storage"]
    rows = [
        [
            "reading over one machine's network (10 Gbit/s)",
            f"{ends['images_per_s_that_one_machine_can_read']:,} images/s",
            "several machines with a few GPUs each, near the images",
        ],
        [
            "the driver's list of paths (64 GB of memory)",
            f"{ends['paths_that_fit_the_driver'] / 1e6:,.0f} million files",
            "parquet: of it the driver knows row counts alone",
        ],
        [
            "a million parts in one folder",
            f"{ends['hours_to_check_the_table']:.1f} h to check them, and again after a kill",
            "`--part-rows 4096`: a quarter of them",
        ],
        [
            "one driver that hands out paths and puts parts in place",
            f"{ends['images_per_s_that_the_driver_can_hand_out']:,.0f} images/s",
            "not reached; else several jobs, each with its share of the lake",
        ],
        [
            "storage",
            f"{storage['images_tb']:,} TB of images, {storage['table_gb']:,} GB of table",
            f"{storage['dollars_a_month']:,} dollars a month, nearly all for the images",
        ],
    ]
    return table(["what", "where it ends", "what then"], rows)


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
    **{f"says-{name}": partial(says, name) for name in FIGURES},
    "adds": adds,
    "demo": demo,
    "cifar": cifar,
    "scope": scope,
    "cifar10-val": lambda: bench("cifar10", "val"),
    "cifar10-train": lambda: bench("cifar10", "train"),
    "cifar10-dropout": lambda: bench("cifar10-dropout", "val"),
    "cifar100-val": lambda: bench("cifar100", "val"),
    "networks": networks,
    "imagenet": imagenet,
    "steps": steps,
    "shift": shift,
    "choosing": choosing,
    "imports": imports,
    "parity": parity,
    "serving": serving,
    "examples": examples,
    **AUTO_TABLES,
    **SPEED_TABLES,
    **{f"example-{name}": partial(example, name) for name in EXAMPLES},
    "cluster-faults": cluster_faults,
    "cluster-bad": cluster_bad,
    "cluster-plan": cluster_plan,
    "cluster-breaks": cluster_breaks,
    "architectures": architectures,
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
