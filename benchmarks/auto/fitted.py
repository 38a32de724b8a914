"""A fitted `Auto` beside the rule put together from stored scores, and what fitting cost.

    python benchmarks/auto/fitted.py FILE… (what study.py wrote)

Writes result-fitted.json: for every file passes and seconds of fitting, the differences to entropy
of both (as in judge.py), and Spearman's ρ between them on every set
(where scores were stored, that is without --fitted-only).
"""

import json
import sys
from pathlib import Path
from typing import Any

from judge import Studied, by_rule, chosen, differences
from scipy.stats import spearmanr


def compared(one: Studied) -> dict[str, Any]:
    fitted, about = one.method("auto"), one.header["about"]
    found = {
        "accuracy": one.header["accuracy"],
        "test images": len(fitted["test"]),
        "errors": int((~one.right["test"]).sum()),
        "passes": {name: about[name]["passes"] for name in about},
        "seconds": {name: round(about[name]["seconds"], 1) for name in about},
        "report": about["auto"]["report"],
        "fitted": {
            name: [round(value, 2) for value in differences(one, one.method(name))]
            for name in one.header["methods"]
        },
    }
    if one.header["columns"]:
        rule = by_rule(one, chosen, one.weights())
        found["from stored scores"] = [round(value, 2) for value in differences(one, rule)]
        rho = {s: float(spearmanr(rule[s], fitted[s]).statistic) for s in rule}
        found["rho"] = {s: round(value, 4) for s, value in rho.items()}
    return found


def main() -> None:
    found = {Path(file).stem: compared(Studied.of(Path(file))) for file in sys.argv[1:]}
    out = Path(__file__).parent / "result-fitted.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    main()
