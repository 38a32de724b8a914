"""Our scores against pytorch-ood's, OpenOOD's, laplace-torch's and WeiPer's authors', method by
method, on one small network.

    python3.11 -m venv /tmp/parity
    /tmp/parity/bin/pip install -c constraints.txt -e '.[demo]' torch==2.13.0 \\
        torchvision==0.28.0 pytorch-ood==0.4.0 laplace-torch==0.3 faiss-cpu statsmodels tqdm
    git clone https://github.com/Jingkang50/OpenOOD /tmp/openood
    git clone https://github.com/omah03/weiper /tmp/weiper      # its first commit is the authors'
    git -C /tmp/weiper checkout f3cdf25
    /tmp/parity/bin/python benchmarks/parity/run.py --openood /tmp/openood \\
        --weiper /tmp/weiper/Weiper/OpenOOD/openood/postprocessors/weiper_kldiv/utils.py

`difference` is max |ours − theirs| as a share of the range of theirs, over the test data (ID and
OOD), after theirs was put in our sign and unit. "equal": at most 1e-4; "same ranking": Spearman's
correlation is 1 within 1e-6; "differs": `why` says by what, and `without` is the difference once
just that is taken away. Where it differs in nothing that can be named, the run fails.
"""

import argparse
import hashlib
import json
import logging
import platform
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "pytorch-ood", "laplace-torch", "faiss-cpu", "statsmodels")
METHODS = (
    *("msp", "ent", "mls", "ebo", "gen", "odin", "react", "ash-b", "ash-s", "ash-p", "scale"),
    *("adascale-a", "adascale-l", "mds", "mds++", "rmds", "rmds++", "vim", "knn", "fdbd", "nci"),
    *("nnguide", "gram", "gradnorm", "rankfeat", "tempscale", "weiper", "laplace"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openood", type=Path, help="a copy of OpenOOD's repository")
    parser.add_argument("--weiper", type=Path, help="the authors' weiper_kldiv/utils.py")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    versions = installed()
    libraries = load_libraries(options)

    import torch
    from comparing import compare
    from problem import make_problem, ours

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    problem = make_problem()
    print(f"network: accuracy {problem.accuracy:.3f} on {len(problem.val[0])} validation inputs\n")
    rows: list[dict[str, Any]] = []
    for method in options.only or METHODS:
        for library, references in libraries.items():
            for reference in references:
                if reference.method == method:
                    detector = ours(problem, method, reference.settings)
                    rows.append(compare(problem, library, reference, detector))
                    show(rows[-1])
    unexplained = [row for row in rows if not explained(row)]
    result = {
        "network": {
            "name": "SmallResNet, scikit-learn's digits",
            "accuracy": round(problem.accuracy, 4),
            "train": len(problem.train[0]),
            "validation": len(problem.val[0]),
            "test": len(problem.test),
        },
        "versions": versions,
        "sources": {
            "openood": fingerprint(options.openood, "openood/postprocessors", "openood/networks"),
            "weiper": fingerprint(options.weiper.parent, options.weiper.name),
        },
        "equal_up_to": 1e-4,
        "rows": [rounded(row) for row in rows],
        "unexplained": [f"{row['method']} ({row['library']})" for row in unexplained],
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    equal = sum(row["verdict"] == "equal" for row in rows)
    print(f"\n{equal} of {len(rows)} equal; not explained: {result['unexplained'] or 'none'}")
    sys.exit(1 if unexplained else 0)


def installed() -> dict[str, str]:
    """Versions of all that is compared; says what to do where something is missing."""
    found, missing = {"python": platform.python_version()}, []
    for name in (*PACKAGES, "tulip-ood", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}. How to:\n{__doc__}")
    return found


def load_libraries(options: argparse.Namespace) -> dict[str, list[Any]]:
    """Every library with its references."""
    import reference_laplace
    import reference_openood
    import reference_pytorch_ood
    import reference_weiper

    missing = [f"--{name}" for name in ("openood", "weiper") if getattr(options, name) is None]
    if missing:
        sys.exit(f"missing: {' and '.join(missing)}. How to:\n{__doc__}")
    reference_pytorch_ood.load()
    reference_laplace.load()
    try:
        reference_openood.load(options.openood)
        reference_weiper.load(options.weiper)
    except FileNotFoundError as error:
        sys.exit(f"{error}. How to:\n{__doc__}")
    return {
        "pytorch-ood": reference_pytorch_ood.REFERENCES,
        "openood": reference_openood.REFERENCES,
        "laplace-torch": reference_laplace.REFERENCES,
        "weiper": reference_weiper.REFERENCES,
    }


def explained(row: dict[str, Any]) -> bool:
    """Whether it is equal, or becomes so without a difference that has a name."""
    inner = row.get("without", row)
    return inner["verdict"] == "equal" or (row["verdict"] != "differs" and bool(row.get("why")))


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    line = "{method:11} {library:14} {difference:9.1e} {spearman:12.8f}  {verdict}".format(**row)
    if "without" in row:
        line += "; without: {difference:.1e} ({verdict})".format(**row["without"])
    print(line + (f"\n{'':12}{row['why']}" if row.get("why") else ""), flush=True)


def rounded(value: Any) -> Any:
    """Three digits are enough for a difference, nine for anything else."""
    if isinstance(value, dict):
        return {k: float(f"{v:.3g}") if k == "difference" else rounded(v) for k, v in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def fingerprint(folder: Path, *parts: str) -> str:
    """A hash of the Python files that were compared with, and the commit where git knows it."""
    files = [f for part in parts for f in sorted((folder / part).rglob("*.py"))]
    files += [folder / part for part in parts if (folder / part).is_file()]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    commit = done.stdout.strip() if done.returncode == 0 else "unknown (no git checkout)"
    return f"sha256 {digest} of {len(files)} files, commit {commit}"


if __name__ == "__main__":
    main()
