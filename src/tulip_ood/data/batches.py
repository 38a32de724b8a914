"""Batches of network inputs from a source: decoded by workers, in order, a little ahead."""

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tulip_ood.data.feeding import Delivery, ahead
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import Label, Row, Source
from tulip_ood.data.workers import Decoders
from tulip_ood.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Batch", "Decoded", "Unreadable", "batches", "decoded_batches"]


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


class Decoded(NamedTuple):
    """Consecutive rows of a source as they come out of decoding: bytes, a quarter of the inputs.

    Attributes:
        rows: Those that could be read.
        pixels: uint8 [N, H, W, C], or the inputs of a source that is ready; None if there are none.
        errors: The rows that could not be read.

    Example:
        >>> pixels = np.zeros((1, 8, 8, 3), dtype=np.uint8)
        >>> decoded = Decoded([Row(0, "a.png", 3)], pixels, [])
        >>> batch = decoded.batch(Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3))
        >>> batch.inputs.shape, batch.labels
        (torch.Size([1, 3, 8, 8]), [3])
    """

    rows: list[Row]
    pixels: NDArray[Any] | None
    errors: list[Unreadable]

    def batch(self, preprocess: Preprocess | None) -> Batch:
        """The same rows as inputs of the network; None for a source that is ready."""
        inputs = None
        if self.pixels is not None:
            # What came from another process may not be written to, and PyTorch knows no such thing.
            pixels = self.pixels if self.pixels.flags.writeable else self.pixels.copy()
            inputs = (
                torch.from_numpy(pixels) if preprocess is None else preprocess.normalise(pixels)
            )
        return Batch(self.rows, inputs, [row.label for row in self.rows], self.errors)


def batches(
    source: Source,
    preprocess: Preprocess | None,
    *,
    batch_size: int,
    first: int = 0,
    stop: int | None = None,
    cut: int | None = None,
    workers: int | None = None,
    processes: bool | None = None,
    device: torch.device | None = None,
) -> Generator[Batch]:
    """The rows first … stop − 1 of a source, `batch_size` at a time.

    A bad row never stops the run. Which rows go together depends on the source and the first
    arguments alone; rows of another shape begin a new batch. While a batch is in use, the next two
    are made and the rows after them decoded; what that holds in memory is bounded.

    Args:
        source: Where the rows come from.
        preprocess: How images become inputs; None for a source that is ready.
        batch_size: Rows in a batch.
        first: The first row.
        stop: The row before which to stop.
        cut: No batch crosses a multiple of this row number.
        workers: How many decode; by default one a processor, at most 16. With 0 nothing is done
            before it is asked for.
        processes: Whether these are processes and not threads; by default where that pays.
        device: Where images are wanted as inputs; by default on the CPU.

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
        yield from _finish(_group(source.read(first, stop), batch_size, cut), torch.from_numpy)
        return
    if preprocess is None:
        raise _unprepared(source)
    rows = (len(source) if stop is None else stop) - first
    deliver = Delivery(preprocess, device)
    decoders = Decoders(preprocess, workers, rows=rows, processes=processes)
    decoded = _group(_decoded(source, decoders, batch_size, first, stop), batch_size, cut)
    made = _finish(decoded, deliver)
    if not decoders.workers:
        for batch in made:
            deliver.receive(batch.inputs, deliver.stamp())
            yield batch
        return
    with contextlib.closing(ahead(made, deliver.stamp)) as stamped:
        for batch, stamp in stamped:
            deliver.receive(batch.inputs, stamp)
            yield batch


def decoded_batches(
    source: Source, preprocess: Preprocess | None, *, batch_size: int, cut: int | None = None
) -> Iterator[Decoded]:
    """The rows of `batches` before they are normalised, decoded by one thread a little ahead.

    Args:
        source: Where the rows come from.
        preprocess: How images become inputs; None for a source that is ready.
        batch_size: Rows in a batch.
        cut: No batch crosses a multiple of this row number.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> preprocess = Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3)
        >>> gone = ImageFiles("x", ["/no/such/a.png"], [None])
        >>> next(decoded_batches(gone, preprocess, batch_size=4)).errors[0].reason
        'there is no such file'
    """
    if source.ready:
        yield from _group(source.read(), batch_size, cut)
        return
    if preprocess is None:
        raise _unprepared(source)
    decoders = Decoders(preprocess, 1, rows=0, processes=False)
    yield from _group(_decoded(source, decoders, batch_size, 0, None), batch_size, cut)


def _unprepared(source: Source) -> InputError:
    return InputError(f"{source.name} holds images: say how they are prepared (preprocess)")


def _finish(
    decoded: Generator[Decoded], finish: Callable[[NDArray[Any]], Tensor]
) -> Generator[Batch]:
    with contextlib.closing(decoded):  # also when the consumer stops early
        for rows, pixels, errors in decoded:
            inputs = None if pixels is None else finish(pixels)
            yield Batch(rows, inputs, [row.label for row in rows], errors)


def _group(read: Iterator[tuple[Row, Any]], batch_size: int, cut: int | None) -> Generator[Decoded]:
    rows: list[Row] = []
    pixels: list[NDArray[Any]] = []
    errors: list[Unreadable] = []

    def flush() -> Decoded:
        decoded = Decoded(list(rows), np.stack(pixels) if pixels else None, list(errors))
        for held in (rows, pixels, errors):
            held.clear()
        return decoded

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


def _decoded(
    source: Source, decoders: Decoders, batch_size: int, first: int, stop: int | None
) -> Iterator[tuple[Row, Any]]:
    """(row, its pixels or the reason why there are none), with a bounded number under way."""
    pending: deque[tuple[Row, Future[NDArray[np.uint8] | str]]] = deque()
    most = batch_size + 2 * decoders.workers if decoders.workers else 0
    with decoders:
        for row, raw in source.read(first, stop):
            pending.append((row, decoders.submit(raw)))
            if len(pending) > most:
                row, done = pending.popleft()
                yield row, done.result()
        while pending:
            row, done = pending.popleft()
            yield row, done.result()
