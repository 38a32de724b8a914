"""pytorch-ood's `Benchmark`, `OODMetrics` and `GridSearch` on our detectors."""

from collections.abc import Iterator
from typing import Any

import ours
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from data import BATCH, OOD, Data
from tulip_ood.adapters import TulipDetector


def rows(data: Data) -> Iterator[dict[str, Any]]:
    """One row a method and a way to evaluate."""
    from pytorch_ood.api import Detector
    from pytorch_ood.metrics import OODMetrics
    from pytorch_ood.utils import GridSearch

    known = TensorDataset(*data.test)
    loader = DataLoader(TensorDataset(*data.val), batch_size=BATCH, shuffle=True)
    for method in ("tulip", "ent", "msp", "gen+scale", "tulip&knn"):
        detector = TulipDetector(data.net, method, batch_size=BATCH).fit(loader)
        assert isinstance(detector, Detector)
        expected = ours.aurocs(ours.fitted(data, method), data)
        found = benchmark(data).evaluate(detector, loader_kwargs={"batch_size": BATCH})
        theirs = {result["Dataset"]: result["AUROC"] for result in found}
        yield row("Benchmark.evaluate", method, theirs, expected)
        theirs = {}
        for name in OOD:
            metrics = OODMetrics()
            for part in (known, unknown(data.ood[name])):
                for x, y in DataLoader(part, batch_size=BATCH):
                    metrics.update(detector(x), y)
            theirs[name] = metrics.compute()["AUROC"]
        yield row("OODMetrics", method, theirs, expected)
    mixed = ConcatDataset([TensorDataset(*data.val), unknown(data.ood_val)])
    detector = TulipDetector(data.net, "knn", batch_size=BATCH)
    search = GridSearch(
        detector,
        loader,
        DataLoader(mixed, batch_size=BATCH),
        hyperparameter_space={"k": [1, 10, 50]},
    )
    best = search.run()
    found = benchmark(data).evaluate(detector, loader_kwargs={"batch_size": BATCH})
    theirs = {result["Dataset"]: result["AUROC"] for result in found}
    expected = ours.aurocs(ours.fitted(data, "knn", **best), data)
    yield row(f"GridSearch (k = {best['k']}), Benchmark.evaluate", "knn", theirs, expected)


def unknown(x: torch.Tensor) -> TensorDataset:
    """Labelled as OOD is there."""
    return TensorDataset(x, torch.full((len(x),), -1))


def benchmark(data: Data) -> Any:
    """A benchmark of theirs over our sets."""
    from pytorch_ood.benchmark import Benchmark

    outside = [unknown(data.ood[name]) for name in OOD]

    class Sets(Benchmark):
        ood_names = OOD

        def train_set(self) -> Any:
            return TensorDataset(*data.train)

        def test_sets(self, known: bool = True, unknown: bool = True) -> list[Any]:
            return [ConcatDataset([TensorDataset(*data.test), part]) for part in outside]

    return Sets()


def row(
    by: str, method: str, theirs: dict[str, float], expected: dict[str, float]
) -> dict[str, Any]:
    """Theirs beside ours."""
    both = {f"AUROC {name}": (float(theirs[name]), expected[name]) for name in expected}
    return {"library": "pytorch-ood", "by": by, "method": method, "theirs and ours": both}
