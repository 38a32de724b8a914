"""The sets of a benchmark in pieces of a fixed size: the unit that is scored, kept and resumed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tulip_ood.data.batches import batches
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.protocol import Protocol
from tulip_ood.data.root import Part
from tulip_ood.errors import DataError

__all__ = [
    "Ahead",
    "Piece",
    "labelled_batches",
    "pieces_of",
    "preprocess_for",
    "unlabelled_batches",
]

_PIECE_BYTES = 256 << 20
_MOST_ROWS = 2048
_BATCH = 256


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a set.

    Attributes:
        part: The set.
        first: Its first row.
        stop: The row after its last.
        preprocess: How its images become inputs.
        digest: Of all rows of the set.
        workers: How many decode; see `batches`.

    Example:
        >>> Piece.__dataclass_fields__["first"].type
        <class 'int'>
    """

    part: Part
    first: int
    stop: int
    preprocess: Preprocess
    digest: str
    workers: int | None = None

    def __len__(self) -> int:
        return self.stop - self.first

    def inputs(self) -> Tensor:
        """[N, …]; NaN where an image cannot be read, so that it gets no score."""
        whole: Tensor | None = None
        for batch in batches(
            self.part.source,
            self.preprocess,
            batch_size=_BATCH,
            first=self.first,
            stop=self.stop,
            workers=self.workers,
        ):
            if batch.inputs is None:
                continue
            if len(batch.rows) == len(self):
                return batch.inputs
            if whole is None:
                whole = batch.inputs.new_full((len(self), *batch.inputs.shape[1:]), float("nan"))
            if batch.inputs.shape[1:] != whole.shape[1:]:
                raise DataError(
                    f"{self.part.name} has images of {list(whole.shape[1:])} and "
                    f"{list(batch.inputs.shape[1:])}, and they are not resized: make them alike"
                )
            whole[[row.number - self.first for row in batch.rows]] = batch.inputs
        if whole is None:
            side = self.preprocess.crop
            if side is None:
                raise DataError(
                    f"none of the rows {self.first} … {self.stop - 1} of {self.part.name} can be "
                    f"read: `tulip data check --deep` says why"
                )
            shape = (len(self), len(self.preprocess.mean), side, side)
            whole = torch.full(shape, float("nan"), dtype=torch.float32)
        return whole


class Ahead:
    """Decodes the next piece in the background while the network works on this one.

    Args:
        pieces: In the order in which they will be asked for.
        device: Where they are wanted: a GPU gets them once, not once a pass.

    Example:
        >>> with Ahead([]) as ahead:
        ...     pass
    """

    def __init__(self, pieces: Sequence[Piece], device: torch.device | None = None) -> None:
        self._on_gpu = device if device is not None and device.type == "cuda" else None
        self._after = dict(zip(map(id, pieces), pieces[1:], strict=False))
        self._under_way: dict[int, Future[Tensor]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tulip-ahead")

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def inputs(self, piece: Piece) -> Tensor:
        """The inputs of a piece; from here on the next one is being decoded."""
        begun = self._under_way.pop(id(piece), None)
        found = self._made(piece) if begun is None else begun.result()
        self._under_way.clear()  # of pieces that were not needed after all
        following = self._after.get(id(piece))
        if following is not None:
            self._under_way[id(following)] = self._pool.submit(self._made, following)
        return found

    def _made(self, piece: Piece) -> Tensor:
        inputs = piece.inputs()
        if self._on_gpu is None:
            return inputs
        return inputs.pin_memory().to(self._on_gpu, non_blocking=True)


def pieces_of(
    part: Part, preprocess: Preprocess, digest: str, workers: int | None = None
) -> list[Piece]:
    """A set cut into pieces; where depends on the size of the inputs alone.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> part = Part("x", "x", ImageFiles("x", ["a.png"] * 5000, [None] * 5000))
        >>> small = Preprocess(32, 32, (0.5,) * 3, (0.5,) * 3)
        >>> [len(piece) for piece in pieces_of(part, small, part.digest())]
        [2048, 2048, 904]
    """
    side = preprocess.crop or preprocess.resize or 224
    fitting = _PIECE_BYTES // (4 * len(preprocess.mean) * side * side)
    step = max(_BATCH, min(_MOST_ROWS, fitting // _BATCH * _BATCH))
    ends = range(0, len(part), step)
    return [Piece(part, i, min(i + step, len(part)), preprocess, digest, workers) for i in ends]


def preprocess_for(protocol: Protocol, own: Preprocess, name: str) -> Preprocess:
    """A network's own preparation of images, but for sets that are used as they are.

    Example:
        >>> from tulip_ood.data.protocol import protocol_of
        >>> own = Preprocess(256, 224, (0.5,) * 3, (0.5,) * 3)
        >>> preprocess_for(protocol_of("imagenet"), own, "imagenet_c").resize is None
        True
    """
    if protocol.preprocess_of(name).resize is None:
        return replace(own, resize=None, crop=None)
    return own


def labelled_batches(
    part: Part, preprocess: Preprocess, workers: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (inputs, labels) for fitting; images that cannot be read are passed over.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> nothing = Part("x", "x", ImageFiles("x", [], []))
        >>> list(labelled_batches(nothing, Preprocess(32, 32, (0.5,) * 3, (0.5,) * 3)))
        []
    """
    for batch in batches(part.source, preprocess, batch_size=_BATCH, workers=workers):
        if batch.inputs is not None:
            yield batch.inputs, torch.from_numpy(np.asarray(batch.labels))


def unlabelled_batches(
    part: Part, preprocess: Preprocess, workers: int | None = None
) -> Iterator[Tensor]:
    """Batches of inputs; images that cannot be read are passed over.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> nothing = Part("x", "x", ImageFiles("x", [], []))
        >>> list(unlabelled_batches(nothing, Preprocess(32, 32, (0.5,) * 3, (0.5,) * 3)))
        []
    """
    for batch in batches(part.source, preprocess, batch_size=_BATCH, workers=workers):
        if batch.inputs is not None:
            yield batch.inputs
