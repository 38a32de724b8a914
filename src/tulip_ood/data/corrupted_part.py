"""Covariate-shifted sets made from ID test images, written so that `sets.json` can name them."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.data.benchmark_part import Part
from tulip_ood.data.corruptions import CORRUPTIONS, SEVERITIES, blur, corrupt
from tulip_ood.data.decoding import decode, why
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import NO_LABEL, Label
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.files import appear
from tulip_ood.numerics.random import integers

__all__ = ["blur_part", "corrupt_part"]

_AT_ONCE = 1_000  # images in a row group

Progress = Callable[[int, int], None]
# What becomes of an image, by its row, and a name for it.
_Change = Callable[[NDArray[np.uint8], int], tuple[str, NDArray[np.uint8]]]


class _Image(NamedTuple):
    pixels: NDArray[np.uint8]
    path: str
    label: int


def corrupt_part(
    part: Part,
    out: str | Path,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    severities: Sequence[int] = SEVERITIES,
    *,
    seed: int = 0,
    prepare: Preprocess | None = None,
    progress: Progress | None = None,
) -> int:
    """Give every image one corruption and severity, drawn by the seed, and write the set.

    It is like CIFAR-10-C and ImageNet-C, but not the same: say so in `sets.json` (`stand_in`).

    Args:
        part: The ID test images.
        out: A `.parquet` or `.npz` file.
        corruptions: What is drawn from.
        severities: What is drawn from, 1 to 5.
        seed: Decides the draws and the noise.
        prepare: Resize and crop first, for a set whose images are later taken as they are.
        progress: Called with (images done, images in all).

    Returns:
        How many images were written.

    Example:
        >>> import tempfile
        >>> from tulip_ood.data.opening import open_sources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", x=np.zeros((3, 8, 8, 3), np.uint8), y=[0, 1, 2])
        ...     part = Part("cifar10", "test", open_sources([f"{folder}/a.npz"]))
        ...     n = corrupt_part(part, f"{folder}/cifar10c.parquet")
        ...     list(open_sources([f"{folder}/cifar10c.parquet"]).labels())
        [0, 1, 2]
    """
    black = np.zeros((1, 1, 3), np.uint8)
    for kind in corruptions:
        for severity in severities:
            corrupt(black, kind, severity)  # refuses what is not known before the work begins
    if not (corruptions and severities):
        raise InputError("there is nothing to draw from: name at least one kind and one severity")
    drawn = integers(
        (len(part),), len(corruptions) * len(severities), seed=seed, name="corruption/choice"
    ).tolist()

    def change(image: NDArray[np.uint8], row: int) -> tuple[str, NDArray[np.uint8]]:
        kind = corruptions[drawn[row] // len(severities)]
        severity = severities[drawn[row] % len(severities)]
        return f"{kind}/{severity}", corrupt(image, kind, severity, seed=seed, row=row)

    return _write(part, Path(out), change, prepare, progress)


def blur_part(
    part: Part, out: str | Path, sigma: float = 2.0, *, progress: Progress | None = None
) -> int:
    """Blur every image and write the set: Blur-ImageNet, if the images are ImageNet's.

    The images keep their size: they are blurred as they are stored, and prepared afterwards.

    Example:
        >>> import tempfile
        >>> from tulip_ood.data.opening import open_sources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", x=np.zeros((3, 8, 8, 3), np.uint8), y=[0, 1, 2])
        ...     part = Part("imagenet", "test", open_sources([f"{folder}/a.npz"]))
        ...     blur_part(part, f"{folder}/blur.npz")
        3
    """
    return _write(
        part, Path(out), lambda image, _: (f"blur/{sigma:g}", blur(image, sigma)), None, progress
    )


def _images(
    part: Part, change: _Change, prepare: Preprocess | None, progress: Progress | None
) -> Iterator[_Image]:
    if part.source.ready:
        raise DataError(
            f"{part.source.name} holds inputs that are already normalised; corruptions need images"
        )
    for row, raw in part.source.read():
        try:
            image = prepare.pixels(raw) if prepare else np.array(decode(raw), dtype=np.uint8)
        except Exception as error:  # whatever a stranger's file makes of our libraries
            raise DataError(f"row {row.number}, {row.path}: {why(error)}") from error
        name, changed = change(image, row.number)
        yield _Image(changed, f"{name}/{row.path}", _number(row.label))
        if progress is not None:
            progress(row.number + 1, len(part))


def _number(label: Label) -> int:
    return label if isinstance(label, int) else NO_LABEL


def _write(
    part: Part,
    out: Path,
    change: _Change,
    prepare: Preprocess | None,
    progress: Progress | None,
) -> int:
    writers = {".parquet": _write_parquet, ".npz": _write_npz}
    if out.suffix.lower() not in writers:
        raise InputError(f"{out} must end in {' or '.join(writers)}")
    write = writers[out.suffix.lower()]
    appear(out, lambda partial: write(partial, _images(part, change, prepare, progress)))
    return len(part)


def _write_parquet(file: Path, images: Iterator[_Image]) -> None:
    import pyarrow as pa  # only here: the rest runs where it is not installed
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
        ]
    )
    with pq.ParquetWriter(file, schema, compression="none") as writer:  # PNGs are compressed
        held: list[dict[str, object]] = []
        for pixels, path, label in images:
            held.append({"image": {"bytes": _png(pixels), "path": path}, "label": label})
            if len(held) == _AT_ONCE:
                writer.write_table(pa.Table.from_pylist(held, schema=schema))
                held = []
        if held:
            writer.write_table(pa.Table.from_pylist(held, schema=schema))


def _png(pixels: NDArray[np.uint8]) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def _write_npz(file: Path, images: Iterator[_Image]) -> None:
    held = list(images)
    shapes = {image.pixels.shape for image in held}
    if len(shapes) > 1:
        raise InputError("images of several sizes do not fit into npz: write .parquet instead")
    with open(file, "wb") as opened:  # by its name, numpy would add another suffix
        np.savez(
            opened,
            x=np.stack([image.pixels for image in held]),
            y=np.array([image.label for image in held]),
            path=np.array([image.path for image in held]),
        )
