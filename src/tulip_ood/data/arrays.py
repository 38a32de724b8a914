"""An npz file: `x` (uint8 NHWC images, or float inputs already normalised) and perhaps `y`."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tulip_ood.data.decoding import Raw
from tulip_ood.data.npz import read_arrays
from tulip_ood.data.source import NO_LABEL, FileStamp, Label, Row, Source
from tulip_ood.errors import DataError

__all__ = ["Arrays"]


class Arrays(Source):
    """The rows of an npz file, held in memory.

    `x` is uint8 [N, H, W] or [N, H, W, C], which is treated like images; or floating [N, …]
    (usually [N, C, H, W]), which goes into the network as it is. `y`, if there, has one label a
    row; a class number of −1 means "none".

    Args:
        file: The npz file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = str(pathlib.Path(folder, "set.npz"))
        ...     np.savez(file, x=np.zeros((2, 3, 8, 8), dtype=np.float32), y=np.array([4, -1]))
        ...     source = Arrays(file)
        >>> source.ready, list(source.labels())
        (True, [4, None])
    """

    def __init__(self, file: str) -> None:
        self.name = file
        held = read_arrays(file, "x", "y", needed="x")
        self._x, self._y = held["x"], held.get("y")
        self.ready = self._x.dtype != np.uint8
        if self.ready:
            self._check_inputs()
        else:
            self._check_images()
        if not len(self):
            raise DataError(f"{file} has no rows: its x has the shape {self._x.shape}")
        if self._y is not None:
            self._check_labels(self._y)

    def _check_labels(self, y: NDArray[np.generic]) -> None:
        if y.shape[:1] != self._x.shape[:1]:
            raise DataError(
                f"{self.name} has {len(self._x)} rows in x but y has the shape {y.shape}: every "
                f"row needs one label"
            )
        if y.dtype.kind not in "biuf":
            raise DataError(
                f"y of {self.name} is {y.dtype}: labels must be numbers, classes 0, 1, 2 …"
            )

    def _check_inputs(self) -> None:
        if not np.issubdtype(self._x.dtype, np.floating) or self._x.ndim < 2:
            raise DataError(
                f"x of {self.name} is {self._x.dtype} of shape {self._x.shape}; expected uint8 "
                f"images [N, H, W, C] or floating inputs that are already normalised [N, C, H, W]"
            )
        self._x = self._x.astype(np.float32, copy=False)

    def _check_images(self) -> None:
        shape = self._x.shape
        if len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4)):
            return
        hint = ""
        if len(shape) == 4 and shape[1] in (1, 3, 4):
            hint = ": this looks like NCHW; save x.transpose(0, 2, 3, 1)"
        raise DataError(
            f"uint8 x of {self.name} has the shape {shape}; expected [N, H, W, C] with 1, 3 or 4 "
            f"channels, or [N, H, W]{hint}"
        )

    def __len__(self) -> int:
        return len(self._x)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        """The row and its pixels or numbers."""
        for i in range(first, len(self) if stop is None else min(stop, len(self))):
            yield Row(i, f"{self.name}#{i}", self._label(i)), self._x[i]

    def labels(self) -> Iterator[Label]:
        """Every row's label."""
        return map(self._label, range(len(self)))

    def _label(self, i: int) -> Label:
        if self._y is None:
            return None
        label = self._y[i]
        if label.ndim:
            return np.asarray(label)
        value: int | float = label.item()
        return None if value == NO_LABEL and not isinstance(value, float) else value

    def files(self) -> Iterator[FileStamp]:
        """The file itself."""
        yield FileStamp.of(self.name)
