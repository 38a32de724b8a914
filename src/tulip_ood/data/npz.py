"""Arrays out of an npz file that may be anyone's: their sizes are checked before they are made."""

import math
import zipfile
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tulip_ood.data.foreign import check_regular, foreign
from tulip_ood.data.remote import opened
from tulip_ood.errors import DataError

__all__ = ["read_arrays"]

_ALWAYS = 1 << 30  # bytes that any file may unpack to
_GROWTH = 100  # beyond that: times its own size (pictures shrink to a half, rarely to a tenth)


def read_arrays(
    file: str, *names: str, needed: str | None = None
) -> dict[str, NDArray[np.generic]]:
    """Those of the named arrays that a file holds.

    Refused are pickled objects, an array whose header claims another size than its bytes have,
    and one that unpacks to more than 1 GiB and a hundred times its packed size.

    Args:
        file: The npz file.
        names: Which arrays; others are not read.
        needed: The one that must be there.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = str(pathlib.Path(folder, "set.npz"))
        ...     np.savez(path, x=np.zeros(2), z=np.ones(3))
        ...     read_arrays(path, "x", "y")
        {'x': array([0., 0.])}
    """
    check_regular(file)
    with foreign(file, "an npz file"), opened(file) as content, zipfile.ZipFile(content) as packed:
        inside = {info.filename.removesuffix(".npy"): info for info in packed.infolist()}
        if needed is not None and needed not in inside:
            raise DataError(f"{file} has no array {needed!r}; it has {', '.join(inside) or 'none'}")
        return {name: _array(packed, inside[name], file) for name in names if name in inside}


def _array(packed: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> NDArray[np.generic]:
    most = max(_ALWAYS, _GROWTH * info.compress_size)
    if info.file_size > most:
        raise DataError(
            f"{file}: {info.filename} unpacks from {info.compress_size:,} to {info.file_size:,} "
            f"bytes, which looks like an attack on the memory; the limit is {most:,}. If it is "
            f"meant, save it unpacked (numpy.savez)"
        )
    with packed.open(info) as member:
        shape, dtype = _header(member)
        if dtype.hasobject:
            raise DataError(f"{file}: {info.filename} holds Python objects, not numbers or text")
        claimed = dtype.itemsize * math.prod(shape)
        left = info.file_size - member.tell()
        if claimed != left:
            raise DataError(
                f"{file}: {info.filename} claims {claimed:,} bytes of numbers and has {left:,}"
            )
    with packed.open(info) as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(member)
    else:
        shape, _, dtype = npy.read_array_header_2_0(member)
    return shape, dtype
