"""OpenOOD's `Evaluator` on our postprocessors, on a CPU."""

import contextlib
import importlib.abc
import importlib.machinery
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import ours
import torch
from torch import Tensor, nn

from data import BATCH, Data
from tulip_ood.adapters import TulipPostprocessor


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that OpenOOD imports everywhere and this evaluation never calls."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return mock.MagicMock(side_effect=RuntimeError(f"{spec.name} is not installed"))

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def load(folder: Path) -> set[str]:
    """Import the evaluator; the names of packages that were not there."""
    # torchvision asks for operators that a torch without vision does not have.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    load.library = library  # type: ignore[attr-defined] – it must outlive this call
    sys.path.insert(0, str(folder))
    absent = Absent()
    sys.meta_path.append(absent)
    while True:
        before = set(sys.modules)
        try:
            importlib.import_module("openood.evaluation_api")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in absent.names | {"", "openood"}:
                raise
            absent.names.add(missing)
            for name in set(sys.modules) - before:
                if name.partition(".")[0] == "openood":
                    del sys.modules[name]
        else:
            return absent.names


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """`.cuda()` stays where it is, and nothing is printed."""
    with (
        mock.patch.object(Tensor, "cuda", lambda self, *a, **k: self),
        mock.patch.object(nn.Module, "cuda", lambda self, *a, **k: self),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def evaluated(data: Data, postprocessor: Any) -> dict[str, float]:
    """What OpenOOD says: every metric of every set."""
    from openood.evaluation_api import Evaluator

    with on_the_cpu():
        evaluator = Evaluator(
            data.net,
            id_name="cifar10",
            data_root=data.folder.name,
            postprocessor=postprocessor,
            batch_size=BATCH,
            num_workers=0,
        )
        table = evaluator.eval_ood(progress=False) / 100
    found = {
        f"{metric} {name}": float(value)
        for metric, column in table.items()
        if metric != "ACC"
        for name, value in column.items()
    }
    return {**found, "ACC": float(table["ACC"].iloc[0])}


def rows(data: Data) -> Iterator[dict[str, Any]]:
    """One row a method, and one for each thing that OpenOOD does in another way."""
    for method in ("tulip", "ent", "msp", "gen+scale", "tulip&knn"):
        made = evaluated(data, TulipPostprocessor(method=method, batch_size=BATCH))
        yield row("Evaluator", method, made, data, ours.fitted(data, method))
    post = TulipPostprocessor(method="knn", track="train", batch_size=BATCH)
    yield row(
        "Evaluator, training data",
        "knn",
        evaluated(data, post),
        data,
        ours.fitted(data, "knn", train=True),
    )
    for method in ("tulip", "gen"):
        post = TulipPostprocessor(method=method, tune="ood", batch_size=BATCH)
        made = evaluated(data, post)
        yield row(
            "Evaluator, OOD validation data",
            method,
            made,
            data,
            ours.fitted(data, method, tune=True),
        )
    args = SimpleNamespace(postprocessor_args={"method": "knn", "batch_size": BATCH})
    args.postprocessor_sweep = {"k_list": [1, 10, 50]}
    post = TulipPostprocessor(SimpleNamespace(postprocessor=args))
    post.APS_mode = True
    made = evaluated(data, post)
    best = post.get_hyperparam()["k"]
    yield row(
        f"Evaluator, its own search (k = {best})",
        "knn",
        made,
        data,
        ours.fitted(data, "knn", k=best),
    )
    yield by_the_base_class(data)


def row(
    by: str, method: str, theirs: dict[str, float], data: Data, detector: Any
) -> dict[str, Any]:
    """Theirs beside ours."""
    expected = ours.openood_table(detector, data)
    assert theirs.keys() == expected.keys(), theirs.keys() ^ expected.keys()
    both = {name: (theirs[name], expected[name]) for name in sorted(theirs)}
    return {"library": "openood", "by": by, "method": method, "theirs and ours": both}


def by_the_base_class(data: Data) -> dict[str, Any]:
    """The loop of OpenOOD's base class in the place of ours."""
    from openood.postprocessors import BasePostprocessor

    class Inherited(TulipPostprocessor):
        inference = BasePostprocessor.inference

    made = Inherited(method="tulip", batch_size=BATCH)
    assert isinstance(made, BasePostprocessor)
    detector = ours.fitted(data, "tulip")
    return row(
        "Evaluator, BasePostprocessor.inference", "tulip", evaluated(data, made), data, detector
    )
