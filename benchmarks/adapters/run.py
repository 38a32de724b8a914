"""The AUROC that each library computes of our detectors, against ours, to 1e-9.

    python3.11 -m venv /tmp/parity
    /tmp/parity/bin/pip install -c constraints.txt -e '.[demo]' torch==2.13.0 \\
        torchvision==0.28.0 pytorch-ood==0.4.0 faiss-cpu statsmodels tqdm pandas
    git clone https://github.com/Jingkang50/OpenOOD /tmp/openood
    /tmp/parity/bin/python benchmarks/adapters/run.py --openood /tmp/openood

Each library evaluates in its own way: OpenOOD's `Evaluator` over a folder of images in its layout,
with its loaders, preprocessing, search of parameters and metrics; pytorch-ood's `Benchmark`,
`OODMetrics` and `GridSearch`; scikit-learn's `roc_auc_score` over a pipeline. "ours" is
`tulip_ood.detectors.make(method, net).fit(…)` with `tulip_ood.numerics.metrics`, in one call each.

AUROC, FPR@95 and the accuracy must be equal. AUPR is written down and is not: OpenOOD takes the
area by the trapezoidal rule, ours is the average precision.
"""

import argparse
import hashlib
import json
import logging
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "pytorch-ood", "scikit-learn", "pandas", "tqdm", "tulip-ood")
TOLERANCE = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openood", type=Path, required=True, help="a copy of its repository")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    if not (options.openood / "openood" / "evaluation_api" / "evaluator.py").exists():
        sys.exit(f"{options.openood} is no copy of OpenOOD's repository. How to:\n{__doc__}")
    versions = installed()

    import in_openood
    import in_pytorch_ood
    import in_sklearn
    import torch

    from data import make_data

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    absent = in_openood.load(options.openood)
    data = make_data()
    print(f"network: {data.parameters} parameters, accuracy {data.accuracy:.3f}\n")
    rows: list[dict[str, Any]] = []
    for house in (in_openood, in_pytorch_ood, in_sklearn):
        for row in house.rows(data):
            both = row["theirs and ours"]
            aupr = [abs(a - b) for name, (a, b) in both.items() if name.startswith("AUPR")]
            if aupr:
                row["AUPR differs by"] = max(aupr)
            row["difference"] = max(
                abs(a - b) for name, (a, b) in both.items() if not name.startswith("AUPR")
            )
            row["equal"] = row["difference"] <= TOLERANCE
            rows.append(row)
            show(row)
    result = {
        "network": {"parameters": data.parameters, "accuracy": round(data.accuracy, 4)},
        "images": {name: len(x) for name, x in data.sizes.items()},
        "versions": versions,
        "openood": {"source": fingerprint(options.openood), "not installed": sorted(absent)},
        "equal_up_to": TOLERANCE,
        "equal": all(row["equal"] for row in rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"\nequal to {TOLERANCE:g}: {sum(row['equal'] for row in rows)} of {len(rows)}")
    sys.exit(0 if result["equal"] else 1)


def installed() -> dict[str, str]:
    """Versions of all that is used; says what to do where something is missing."""
    found, missing = {"python": platform.python_version()}, []
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}. How to:\n{__doc__}")
    return found


def fingerprint(folder: Path) -> str:
    """Of the files that evaluate."""
    digest = hashlib.sha256()
    for part in ("evaluation_api", "evaluators", "postprocessors"):
        for path in sorted((folder / "openood" / part).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    theirs, ours = (
        row["theirs and ours"].get("AUROC nearood") or row["theirs and ours"]["AUROC tin"]
    )
    print(
        f"{row['library']:13} {row['by']:40} {row['method']:12} {theirs:.6f} {ours:.6f}  "
        f"at most {row['difference']:.1e} apart",
        flush=True,
    )


if __name__ == "__main__":
    main()
