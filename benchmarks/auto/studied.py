"""What `study.py` or `columns.py` has stored of one network, and how a score on it is judged."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tulip_ood.numerics.metrics import aurc, auroc

Scores = Mapping[str, NDArray[np.float64]]  # by source


@dataclass(frozen=True)
class Studied:
    """One network's stored scores."""

    name: str
    header: dict[str, Any]
    table: NDArray[np.float32]
    methods: dict[str, NDArray[np.float64]]
    right: dict[str, NDArray[np.bool_]]

    @staticmethod
    def of(files: str) -> "Studied":
        """From a file, or from several of the same network that are joined by +."""
        first, *others = (_read(file) for file in files.split("+"))
        for other in others:
            same = np.allclose(first.methods["ent"], other.methods["ent"], rtol=0, atol=1e-3)
            if not same:
                raise SystemExit(f"{files}: entropies differ, these are not of one network")
            first.methods.update({n: v for n, v in other.methods.items() if n not in first.methods})
            first.header["about"] = {**other.header["about"], **first.header["about"]}
        return first

    @property
    def sets(self) -> list[str]:
        return [*self.header["near"], *self.header["far"]]

    def raw(self, name: str) -> dict[str, NDArray[np.float64]]:
        """What was computed by hand."""
        row = self.table[self.header["columns"].index(name)]
        return _cut(row, self.header["sources"], self.header["sizes"])

    def method(self, name: str) -> dict[str, NDArray[np.float64]]:
        """The scores of a fitted detector."""
        sizes = dict(zip(self.header["sources"], self.header["sizes"], strict=True))
        sources = self.header["method sources"]
        return _cut(self.methods[name], sources, [sizes[source] for source in sources])

    def judge(self, scores: Scores) -> list[float]:
        """AUROC near and far, AURC, right shifted images refused at 5 % of the test images."""

        def group(names: Sequence[str]) -> float:
            return 100 * float(np.mean([auroc(scores["test"], scores[n]) for n in names]))

        wrong = (~self.right["test"]).astype(np.float64)
        refused = scores["shifted"][self.right["shifted"]] > np.quantile(scores["test"], 0.95)
        return [
            group(self.header["near"]),
            group(self.header["far"]),
            aurc(torch.from_numpy(scores["test"]), torch.from_numpy(wrong)),
            100 * float(refused.mean()),
        ]

    def differences(self, scores: Scores) -> list[float]:
        """To plain entropy: points, points, per cent, points."""
        return self.beside(self.method("ent"), scores)

    def beside(self, plain: Scores, scores: Scores) -> list[float]:
        """Differences of one score to another."""
        base, found = self.judge(plain), self.judge(scores)
        errors = 100 * (found[2] / base[2] - 1)
        return [found[0] - base[0], found[1] - base[1], errors, found[3] - base[3]]


def of_tasks(description: str | None, out: Path, judged: Callable[[list[str]], Any]) -> None:
    """What comes of the files of every task that is asked for on the command line, as one file.

    Args:
        description: For `--help`.
        out: The file to write.
        judged: From a task's files to what is written of it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("tasks", nargs="+", help="NAME=FILE,FILE,…")
    result: dict[str, Any] = {}
    for each in parser.parse_args().tasks:
        task, files = each.split("=")
        result[task] = judged(files.split(","))
        print(task, flush=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


def _read(file: str) -> Studied:
    with np.load(file) as found:
        right = {k.removeprefix("right "): found[k] for k in found.files if k[:6] == "right "}
        header = json.loads(str(found["header"]))
        table = found["table"] if "table" in found.files else np.empty((0, 0))
        methods = {}
        if "methods" in found.files:
            methods = dict(zip(header["methods"], found["methods"], strict=True))
        return Studied(Path(file).stem, header, table.astype(np.float32), methods, right)


def _cut(
    row: NDArray[Any], sources: Sequence[str], sizes: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    at = np.cumsum([0, *sizes])
    return {
        source: row[begin:end].astype(np.float64)
        for source, begin, end in zip(sources, at[:-1], at[1:], strict=True)
    }
