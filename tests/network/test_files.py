"""Files appear whole or not at all, and as the user's umask wants them."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network.files import appear, save_tensors
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def passes() -> Passes:
    settings = PassSettings(1.0, n_samples=0)
    return Passes(torch.zeros(3, 2), torch.zeros(0, 3, 2), None, None, None, settings)


def test_the_umask_is_respected(tmp_path: Path, umask: int) -> None:
    """safetensors writes a temporary file, which nobody else may read."""
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)}, {})
    passes().save(tmp_path / "p.safetensors")
    appear(tmp_path / "t.txt", lambda path: path.write_text("text"))
    assert {mode(path) for path in tmp_path.iterdir()} == {0o666 & ~umask}
    assert len(list(tmp_path.iterdir())) == 3


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder .*gone. Make it first"):
        passes().save(tmp_path / "gone" / "p.safetensors")
    with pytest.raises(InputError, match="it is a folder"):
        passes().save(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        save_tensors(tmp_path / "gone" / "x", {"a": torch.ones(2)}, {})


def test_what_fails_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    target = tmp_path / "t.txt"
    target.write_text("old")

    def half(path: Path) -> None:
        path.write_text("ne")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        appear(target, half)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_told_with_the_file_that_did_not_fit(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"t\.txt cannot be written: No space left") as caught:
        appear(tmp_path / "t.txt", full)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"there is no file .*absent\.safetensors"):
        Passes.load(tmp_path / "absent.safetensors")


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Renaming to /dev/null would succeed, for one who may do that."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="it is a device or a pipe. Name a file"):
        appear(pipe, lambda path: path.write_text("x"))
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]
