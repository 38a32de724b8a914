"""Batches of network inputs from a source: decoded by a few threads, in order, a little ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tulip_ood.data.decoding import Raw, why
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import Label, Row, Source
from tulip_ood.errors import InputError

__all__ = ["Batch", "Unreadable", "batches"]

_MOST_WORKERS = 8


class Unreadable(NamedTuple):
    """A row that could not be read.

    Attributes:
        row: Its number.
        path: Where it is.
        reason: Why.
        label: The truth, or None.

    Example:
        >>> Unreadable(3, "a.png", "the file is empty (0 bytes)").reason
        'the file is empty (0 bytes)'
    """

    row: int
    path: str
    reason: str
    label: Label = None


class Batch(NamedTuple):
    """Consecutive rows of a source.

    Attributes:
        rows: Those that could be read.
        inputs: Their tensors, [N, …]; None if there are none.
        labels: Their labels.
        errors: The rows that could not be read.

    Example:
        >>> Batch([], None, [], [Unreadable(0, "a.png", "the file is empty (0 bytes)")]).size
        1
    """

    rows: list[Row]
    inputs: Tensor | None
    labels: list[Label]
    errors: list[Unreadable]

    @property
    def size(self) -> int:
        """How many rows it stands for, good and bad."""
        return len(self.rows) + len(self.errors)


def batches(
    source: Source,
    preprocess: Preprocess | None,
    *,
    batch_size: int,
    first: int = 0,
    stop: int | None = None,
    cut: int | None = None,
    workers: int | None = None,
) -> Iterator[Batch]:
    """The rows first … stop − 1 of a source, `batch_size` at a time.

    A bad row never stops the run. Which rows go together depends on the source and these
    arguments alone; rows of another shape begin a new batch.

    Args:
        source: Where the rows come from.
        preprocess: How images become inputs; None for a source that is ready.
        batch_size: Rows in a batch.
        first: The first row.
        stop: The row before which to stop.
        cut: No batch crosses a multiple of this row number.
        workers: Threads that decode; by default one a processor, at most 8.

    Example:
        >>> import pathlib, tempfile
        >>> from PIL import Image
        >>> from tulip_ood.data.opening import open_sources
        >>> preprocess = Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (20, 10)).save(pathlib.Path(folder, "a.png"))
        ...     pathlib.Path(folder, "b.png").touch()
        ...     source = open_sources([folder])
        ...     batch = next(batches(source, preprocess, batch_size=4))
        >>> batch.inputs.shape, batch.errors[0].reason
        (torch.Size([1, 3, 8, 8]), 'the file is empty (0 bytes)')
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if source.ready:
        finish: Callable[[NDArray[Any]], Tensor] = torch.from_numpy
        read: Iterator[tuple[Row, Any]] = source.read(first, stop)
    else:
        if preprocess is None:
            raise InputError(f"{source.name} holds images: say how they are prepared (preprocess)")
        finish = preprocess.normalise
        read = _ahead(source, preprocess, batch_size, first, stop, workers)
    yield from _group(read, finish, batch_size, cut)


def _group(
    read: Iterator[tuple[Row, Any]],
    finish: Callable[[NDArray[Any]], Tensor],
    batch_size: int,
    cut: int | None,
) -> Iterator[Batch]:
    rows: list[Row] = []
    pixels: list[NDArray[Any]] = []
    errors: list[Unreadable] = []

    def flush() -> Batch:
        inputs = finish(np.stack(pixels)) if pixels else None
        batch = Batch(list(rows), inputs, [row.label for row in rows], list(errors))
        for held in (rows, pixels, errors):
            held.clear()
        return batch

    for row, found in read:
        whole = len(rows) + len(errors)
        at_cut = cut is not None and row.number % cut == 0
        other = bool(pixels) and isinstance(found, np.ndarray) and found.shape != pixels[0].shape
        if whole and (whole == batch_size or at_cut or other):
            yield flush()
        if isinstance(found, np.ndarray):
            rows.append(row)
            pixels.append(found)
        else:
            errors.append(Unreadable(row.number, row.path, str(found), row.label))
    if rows or errors:
        yield flush()


def _ahead(
    source: Source,
    preprocess: Preprocess,
    batch_size: int,
    first: int,
    stop: int | None,
    workers: int | None,
) -> Iterator[tuple[Row, Any]]:
    """(row, its pixels or the reason why there are none), with a bounded number under way."""

    def work(raw: Raw) -> NDArray[np.uint8] | str:
        try:
            return preprocess.pixels(raw)
        except Exception as error:  # whatever a stranger's file makes of our libraries
            return why(error)

    threads = min(_MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
    pending: deque[tuple[Row, Future[NDArray[np.uint8] | str]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tulip-decode")
    try:
        for row, raw in source.read(first, stop):
            pending.append((row, pool.submit(work, raw)))
            if len(pending) > batch_size + 2 * threads:
                row, done = pending.popleft()
                yield row, done.result()
        while pending:
            row, done = pending.popleft()
            yield row, done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
