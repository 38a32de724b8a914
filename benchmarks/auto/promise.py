"""How many fresh in-distribution images detectors refuse, beside what was promised.

    python benchmarks/auto/promise.py

`Auto` looks at all validation images when it weighs its opinions, also at those that the threshold
comes from, which conformal prediction does not foresee. Does it show? The digits of scikit-learn: a
small network is trained on 300 of them; the others are divided at random again and again, 450 to
fit on and the rest to be asked about. Writes result-promise.json. A few minutes on two cores.
"""

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from tulip_ood import Auto, Tulip
from tulip_ood.models.digits import train_digit_net
from tulip_ood.numerics.random import permutation

TRAINED, FITTED, RATES = 300, 450, (0.05, 0.1)
DETECTORS: dict[str, Callable[[Any], Any]] = {"tulip, balanced": Tulip, "auto": Auto}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "result-promise.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pictures, digits = load_digits(return_X_y=True)
    x = torch.from_numpy(pictures).float().reshape(-1, 1, 8, 8) / 16
    y = torch.from_numpy(digits)
    order = permutation(len(x), seed=0, name="trained")
    own, others = order[:TRAINED], order[TRAINED:]
    model = train_digit_net(x[own], y[own], classes=10)
    refused: dict[str, dict[float, list[float]]] = {
        name: {rate: [] for rate in RATES} for name in DETECTORS
    }
    for time in range(given.times):
        rows = others[permutation(len(others), seed=time, name="divided")]
        val, fresh = rows[:FITTED], rows[FITTED:]
        for name, make in DETECTORS.items():
            detector = make(model)
            recipe = {"recipe": "balanced"} if isinstance(detector, Tulip) else {}
            detector.fit([(x[val], y[val])], **recipe)
            for rate in RATES:
                detector.set_threshold(false_alarm=rate)
                accepted = detector.predict(x[fresh]).accepted
                refused[name][rate].append(1 - float(accepted.double().mean()))
        print(time, {n: round(statistics.mean(r[RATES[0]]), 4) for n, r in refused.items()})
    result = {
        "times": given.times,
        "fresh images": len(fresh),
        "rows": {
            name: {
                f"{rate:.0%}": {
                    "refused": round(statistics.mean(each), 4),
                    "standard error": round(statistics.stdev(each) / given.times**0.5, 4),
                }
                for rate, each in rates.items()
            }
            for name, rates in refused.items()
        },
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
