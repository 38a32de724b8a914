"""Fitting as a command does it: labels checked, memory announced, bad files noted."""

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import typer

from tulip_ood.cli.failing import UsageError
from tulip_ood.cli.options import show_unreadable
from tulip_ood.cli.progress import make_progress
from tulip_ood.errors import TulipWarning
from tulip_ood.network.refusing import network_refuses
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tulip_ood.data.batches import Unreadable
    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.detectors.base import Detector

__all__ = ["check_labels", "fit", "network_refuses"]

_TO_FIT = "fitting needs the label of every input"
BATCH = 64  # inputs that are read at once


def check_labels(source: "Source", option: str, why: str = _TO_FIT) -> None:
    """Refuse a source with unlabelled rows: working on the others would go unnoticed.

    Args:
        source: What was named.
        option: By which option.
        why: What labels are needed for.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> check_labels(ImageFiles("cats", ["a.png", "b.png"], [0, None]), "--data")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --data: 1 of 2 inputs of cats have no label (the first: \
b.png), and fitting needs the label of every input. Use class folders called as the classes \
are (in --classes, if given), lines `path label` in a list, a column `label` in parquet, or `y` in \
npz
    """
    lacking = [number for number, label in enumerate(source.labels()) if label is None]
    if lacking:
        row, _ = next(source.read(lacking[0], lacking[0] + 1))
        raise UsageError(
            f"{option}: {len(lacking):,} of {len(source):,} inputs of {source.name} have no label "
            f"(the first: {row.path}), and {why}. Use class folders called as the classes are (in "
            f"--classes, if given), lines `path label` in a list, a column `label` in parquet, or "
            f"`y` in npz"
        )


def fit(
    detector: "Detector",
    source: "Source",
    preprocess: "Preprocess | None",
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    **how: Any,
) -> "list[Unreadable]":
    """Fit a detector on a source; returns the rows that could not be read and were left out.

    Args:
        detector: Not fitted yet.
        source: Labelled.
        preprocess: How its images are prepared.
        batch_size: Rows that are read at once.
        workers: How many decode.
        **how: Further arguments of `detector.fit`.

    Example:
        >>> import numpy, pathlib, tempfile, torch, tulip_ood
        >>> from tulip_ood.data.arrays import Arrays
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = str(pathlib.Path(folder, "x.npz"))
        ...     numpy.savez(path, x=numpy.random.rand(40, 3, 8, 8), y=numpy.arange(40) % 2)
        ...     model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
        ...     fit(tulip_ood.detectors.MSP(model), Arrays(path), None)
        []
    """
    import numpy as np
    import torch

    from tulip_ood.data.batches import batches
    from tulip_ood.data.vanished import check_there, there

    folders = there(source.folders())
    errors: list[Unreadable] = []
    with make_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", TulipWarning)  # the report shows them all
        reading = bar.add_task("reading", total=len(source))
        fitting = bar.add_task("fitting", total=None, visible=False)

        def labelled() -> "Iterator[tuple[Tensor, Tensor]]":
            size = batch_size or BATCH
            for batch in batches(source, preprocess, batch_size=size, workers=workers):
                bar.advance(reading, batch.size)
                errors.extend(batch.errors)
                if batch.inputs is not None:
                    yield batch.inputs, torch.as_tensor(np.asarray(batch.labels))
            if errors:  # a fit on what was read before would go unnoticed
                check_there(folders, errors[0].path, errors[0].reason)
            bar.update(fitting, visible=True)

        loader = labelled()
        first = next(loader, None)
        if first is None:
            show_unreadable(errors, len(errors))
            raise UsageError(
                f"nothing in {source.name} can be read ({counted(len(source), 'input')})"
            )
        try:
            _announce_memory(detector, first[0])
            detector.fit(
                itertools.chain([first], loader),
                progress=lambda done, total: bar.update(fitting, completed=done, total=total),
                **how,
            )
        except RuntimeError as error:
            raise network_refuses(error, first[0]) from error
    return errors


def _announce_memory(detector: "Detector", inputs: "Tensor") -> None:
    """Perturbed weights are many copies of the network: say how many before they are made."""
    size = detector.memory(inputs)
    if size:
        typer.echo(
            f"perturbed copies of the weights will be held in memory: {size / 1e6:,.1f} MB on "
            f"{detector.network.device}",
            err=True,
        )
