"""Other ways to order inputs in `Auto`'s rule, on stored scores.

    python benchmarks/auto/orders.py cifar10=c10_0.npz digits=digits_0.npz,… --classes leaves=29 …

From what `study.py --columns rule` has stored. The order T is replaced by plain entropy, by noise
without a bound, by TULiP without drift or with J = 1; nothing looks at noise; or the whole rule is
a sum whose weights a logistic regression has learned. Everything is scaled on held-out images
before the mirror image is averaged in. Writes result-orders.json: for every task the differences to
entropy as in judge.py.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts import above, against, bars, weights
from studied import Scores, Studied, of_tasks
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

HERE = Path(__file__).parent
ENTROPY, MIRROR = "none/ent", "mirror"
SHAPED, NEIGHBOURS, RATIO, DEPTH = "shaped", "knn, both", "ratio", "depth"
ORDERS = {
    "TULiP, balanced λ, J*": "balanced",
    "TULiP, balanced λ, J = 1": "balanced, J 1",
    "TULiP without drift, J*": "no drift",
    "noise, no bound": "noise",
    "plain entropy": ENTROPY,
}


def scaled(scores: Scores) -> Scores:
    low, middle, high = np.quantile(scores["held out"], [0.16, 0.5, 0.84])
    return {name: (v - middle) / max((high - low) / 2, 1e-12) for name, v in scores.items()}


def with_mirror(one: Studied, column: str, mirror: str) -> Scores:
    """Mean over both images, where mirror images are looked at."""
    own = one.column(column)
    if mirror not in one.header["columns"]:
        return scaled(own)
    other = one.column(mirror)
    return scaled({name: (own[name] + other[name]) / 2 for name in own})


def put_together(one: Studied, column: str) -> Scores:
    """The rule over another order."""
    w = weights(one)
    c = bars(one, w)
    z = {name: one.column(name) for name in (SHAPED, NEIGHBOURS, RATIO, DEPTH)}
    order = with_mirror(one, column, MIRROR)

    def total(source: str) -> Any:
        here = {name: values[source] for name, values in z.items()}
        found = against(here, w)
        speaks = sum(w[name] * above(found[name] - c[name]) for name in (RATIO, DEPTH))
        near = w[NEIGHBOURS] * here[NEIGHBOURS] / 2
        return order[source] + near + above(found[SHAPED] - c[SHAPED]) + speaks

    return {source: total(source) for source in ("test", "shifted", *one.sets)}


def without_noise(one: Studied) -> Studied:
    """GEN of the image itself speaks for shaped features, and nobody for the ratio."""
    columns = [{SHAPED: "-", "gen": SHAPED}.get(name, name) for name in one.header["columns"]]
    table = one.table.copy()
    table[columns.index(RATIO)] = 0.0
    return replace(one, header={**one.header, "columns": columns}, table=table)


def learned(one: Studied) -> Scores:
    """Weights (not negative) by logistic regression: what should be accepted against the rest.

    Accepted: held-out and mildly changed images that are answered rightly. Refused: held-out images
    that are not, and pseudo-OOD. All groups count alike.
    """
    names = [*ORDERS.values(), SHAPED, NEIGHBOURS, RATIO, DEPTH]
    names += [name for name in (MIRROR,) if name in one.header["columns"]]
    columns = [one.column(name) for name in names]

    def rows(source: str) -> Any:
        return np.stack([np.clip(column[source], -6, 12) for column in columns], axis=1)

    mild = [source for source in one.header["sources"] if source.startswith("mild_")]
    kinds = [source for source in one.header["sources"] if source.startswith("kind ")]
    fine = [rows(source)[one.right[source]] for source in ("held out", *mild)]
    odd = [rows(source) for source in kinds]
    wrong = rows("held out")[~one.right["held out"]]
    groups = [(part, 0.0, len(fine)) for part in fine] + [(part, 1.0, len(odd)) for part in odd]
    groups.append((wrong, 1.0, 1))
    x = torch.from_numpy(np.concatenate([part for part, _, _ in groups]))
    y = torch.cat([torch.full((len(part),), to).double() for part, to, _ in groups])
    share = torch.cat(
        [torch.full((len(part),), 1 / max(len(part) * n, 1)).double() for part, _, n in groups]
    )
    free, bias = (torch.zeros(n).double().requires_grad_() for n in (len(names), 1))
    search = torch.optim.LBFGS([free, bias], max_iter=200)

    def loss() -> Any:
        search.zero_grad()
        given = x @ softplus(free) + bias
        each = binary_cross_entropy_with_logits(given, y, reduction="none")
        value = (share * each).sum() + 1e-3 * softplus(free).square().sum()
        value.backward()
        return value

    search.step(loss)
    found = softplus(free).detach().numpy()
    return {source: rows(source) @ found for source in ("test", "shifted", *one.sets)}


def ways(networks: Sequence[Studied]) -> dict[str, list[tuple[Studied, Scores]]]:
    """Every way to put a score together, on every network."""
    found = {
        name: [(one, put_together(one, column)) for one in networks]
        for name, column in ORDERS.items()
    }
    found["no noise at all: two passes"] = [
        (one, put_together(without_noise(one), ENTROPY)) for one in networks
    ]
    return {**found, "a sum with learned weights": [(one, learned(one)) for one in networks]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", help="NAME=FILE,FILE,…")
    parser.add_argument("--classes", nargs="*", default=[], help="NAME=NUMBER where not 10")
    parser.add_argument("--out", type=Path, default=HERE / "result-orders.json")
    given = parser.parse_args()
    result: dict[str, Any] = {}
    for task, networks in of_tasks(given.tasks, given.classes):
        result[task] = {
            name: {one.name: np.round(one.differences(found), 2).tolist() for one, found in own}
            for name, own in ways(networks).items()
        }
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
