"""The sets of a benchmark in pieces of a fixed size: the unit that is scored, kept and resumed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tulip_ood.data.batches import batches
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.protocol import Protocol
from tulip_ood.data.root import Part
from tulip_ood.errors import DataError

__all__ = ["Piece", "labelled_batches", "pieces_of", "preprocess_for", "unlabelled_batches"]

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

    Example:
        >>> Piece.__dataclass_fields__["first"].type
        <class 'int'>
    """

    part: Part
    first: int
    stop: int
    preprocess: Preprocess
    digest: str

    def __len__(self) -> int:
        return self.stop - self.first

    def inputs(self) -> Tensor:
        """[N, …]; NaN where an image cannot be read, so that it gets no score."""
        found: dict[int, Tensor] = {}
        for batch in batches(
            self.part.source, self.preprocess, batch_size=_BATCH, first=self.first, stop=self.stop
        ):
            if batch.inputs is not None:
                for row, x in zip(batch.rows, batch.inputs, strict=True):
                    found[row.number] = x
        if not found:
            raise DataError(
                f"none of the rows {self.first} … {self.stop - 1} of {self.part.name} can be read: "
                f"`tulip data check --deep` says why"
            )
        nothing = torch.full_like(next(iter(found.values())), float("nan"))
        return torch.stack([found.get(i, nothing) for i in range(self.first, self.stop)])


def pieces_of(part: Part, preprocess: Preprocess, digest: str) -> list[Piece]:
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
    return [Piece(part, i, min(i + step, len(part)), preprocess, digest) for i in ends]


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


def labelled_batches(part: Part, preprocess: Preprocess) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (inputs, labels) for fitting; images that cannot be read are passed over.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> nothing = Part("x", "x", ImageFiles("x", [], []))
        >>> list(labelled_batches(nothing, Preprocess(32, 32, (0.5,) * 3, (0.5,) * 3)))
        []
    """
    for batch in batches(part.source, preprocess, batch_size=_BATCH):
        if batch.inputs is not None:
            yield batch.inputs, torch.from_numpy(np.asarray(batch.labels))


def unlabelled_batches(part: Part, preprocess: Preprocess) -> Iterator[Tensor]:
    """Batches of inputs; images that cannot be read are passed over.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> nothing = Part("x", "x", ImageFiles("x", [], []))
        >>> list(unlabelled_batches(nothing, Preprocess(32, 32, (0.5,) * 3, (0.5,) * 3)))
        []
    """
    for batch in batches(part.source, preprocess, batch_size=_BATCH):
        if batch.inputs is not None:
            yield batch.inputs
