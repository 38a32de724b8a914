"""Files that appear whole or not at all, with the permissions that the user's umask gives.

And files of strangers: whatever goes wrong while one is read is said in an error of ours.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tulip_ood.errors import (
    FileFormatError,
    InputError,
    TulipError,
    failure_in_network,
    kind_and_text,
)

__all__ = ["appear", "reading", "save_tensors"]


@contextmanager
def reading(path: object, expected: str) -> Iterator[None]:
    """What goes wrong inside, in any library, means that a file is not what it should be.

    Args:
        path: The file.
        expected: What it should be, for the message.

    Example:
        >>> with reading("d.safetensors", "a detector for this model"):
        ...     {}["scores"]
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: d.safetensors is damaged, or not a detector for this \
model: KeyError: 'scores'
    """
    try:
        yield
    except TulipError:
        raise  # it says what is wrong, which may be the model
    except Exception as error:  # nobody can foresee what a stranger's bytes make of libraries
        if failed := failure_in_network(error):
            raise FileFormatError(
                f"{path} could not be tried, as {failed}. Mend it there, or give the network that "
                f"the file was made for"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise FileFormatError(f"there is no file {path}") from error
        raise FileFormatError(
            f"{path} is damaged, or not {expected}: {kind_and_text(error)}"
        ) from error


def appear(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let a file appear: it is written beside its place under another name, then renamed.

    Args:
        path: Where it shall be; its folder must be there.
        write: Writes to the path that it is given. It may replace that file by one with narrower
            permissions (a temporary one): the file gets those of any file that the user makes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     appear(f"{folder}/x.txt", lambda path: path.write_text("all of it"))
        ...     os.listdir(folder)
        ['x.txt']
        >>> appear("/no/such/folder/x.txt", lambda path: None)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: /no/such/folder/x.txt cannot be written: there is no folder \
/no/such/folder. Make it first
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(
            f"{target} cannot be written: there is no folder {target.parent}. Make it first"
        )
    if target.is_dir():
        raise InputError(f"{target} cannot be written: it is a folder. Name a file in it")
    if target.exists() and not target.is_file():  # renaming would put a file in the place of it
        raise InputError(f"{target} cannot be written: it is a device or a pipe. Name a file")
    mine = f"{os.getpid()}-{threading.get_native_id()}"
    partial = target.with_name(f"{target.name}.{mine}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        write(partial)
        partial.chmod(mode)
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except PermissionError as error:
        raise InputError(
            f"{target} cannot be written: {error.strerror} ({error.filename})"
        ) from error
    except OSError as error:
        if error.errno is None:
            raise
        told = f"{target} cannot be written: {error.strerror}"  # a full disk names no file itself
        raise OSError(error.errno, told) from error
    finally:
        partial.unlink(missing_ok=True)


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """A safetensors file that appears whole or not at all.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import load_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_tensors(f"{folder}/x.safetensors", {"a": torch.ones(2)}, {})
        ...     load_file(f"{folder}/x.safetensors")
        {'a': tensor([1., 1.])}
    """
    held = {name: value.contiguous() for name, value in tensors.items()}
    try:
        appear(path, lambda partial: save_file(held, partial, metadata=dict(metadata)))
    except SafetensorError as error:  # a full disk, for instance
        raise InputError(f"{path} cannot be written: {error}") from error
