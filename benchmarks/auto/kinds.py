"""Which kinds of pseudo-OOD predict real OOD.

    python benchmarks/auto/kinds.py cifar10=c10_0.npz,c10_1.npz digits=…

From scores that `study.py --candidates` has computed by hand. Writes result-kinds.json: for every
kind Spearman's ρ between the AUROC against it and the real AUROC, near and far, over all candidate
scores, mean over a task's networks.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from studied import Studied, of_tasks

from tulip_ood.numerics.metrics import auroc
from tulip_ood.shifts.kinds import kinds_for

IMITATE = {"tile", "tiny_patch", "grating"}  # textures, as a benchmark's set of textures


def by_kind(one: Studied, column: str) -> dict[str, float]:
    """AUROC of held-out images against each kind of pseudo-OOD made from them."""
    scores = one.raw(column)
    names = [n for n in scores if n.startswith("kind ")]
    return {n.removeprefix("kind "): auroc(scores["held out"], scores[n]) for n in names}


def predicts(files: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[list[float]]] = {}
    for one in map(Studied.of, files):
        names = [c for c in one.header["columns"] if c != "norm"]
        kinds = [by_kind(one, c) for c in names]
        real = [one.judge(one.raw(c))[:2] for c in names]
        columns = {kind: [k[kind] for k in kinds] for kind in kinds[0]}
        every = list(columns)
        columns["all kinds, mean"] = np.mean([columns[k] for k in every], axis=0).tolist()
        others = [columns[k] for k in every if k not in IMITATE]
        columns["without tile, tiny_patch, grating"] = np.mean(others, axis=0).tolist()
        usual = [columns[k] for k in kinds_for("images")]
        columns["the seven of the recipes"] = np.mean(usual, axis=0).tolist()
        for kind, values in columns.items():
            pair = [float(spearmanr(values, [r[i] for r in real]).statistic) for i in (0, 1)]
            found.setdefault(kind, []).append(pair)
    return {kind: np.mean(pairs, axis=0).round(3).tolist() for kind, pairs in found.items()}


def main() -> None:
    of_tasks(__doc__, Path(__file__).with_name("result-kinds.json"), predicts)


if __name__ == "__main__":
    main()
