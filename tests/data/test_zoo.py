"""Odd files are read as a person would see them; bad ones give a reason and stop nothing."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tulip_ood.data.batches import Unreadable, batches
from tulip_ood.data.decoding import decode, why
from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess

PREPROCESS = Preprocess(16, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
Make = Callable[[dict[str, bytes]], Path]


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(decode(content)).astype(int)


@pytest.mark.parametrize("name", ["cmyk.jpg", "palette.png", "alpha.png", "web.webp", "wide.tiff"])
def test_the_way_of_storing_does_not_matter(good: dict[str, bytes], name: str) -> None:
    assert np.abs(pixels(good[name]) - pixels(good["plain.jpg"])).mean() < 12


def test_sixteen_bits_are_scaled_not_clipped(good: dict[str, bytes]) -> None:
    assert set(np.unique(pixels(good["deep.png"]))) == {0x81}


def test_the_first_frame_of_an_animation(good: dict[str, bytes]) -> None:
    assert pixels(good["animated.gif"])[0, 0].tolist() == [255, 0, 0]


def test_exif_rotation(good: dict[str, bytes]) -> None:
    upright, turned = pixels(good["plain.jpg"]), pixels(good["turned.jpg"])
    assert turned.shape == (48, 32, 3)
    np.testing.assert_array_equal(turned, np.rot90(upright, -1))


def test_grey_becomes_three_equal_channels(good: dict[str, bytes]) -> None:
    grey = pixels(good["grey.png"])
    assert grey.shape == (32, 48, 3)
    assert (grey[..., 0] == grey[..., 2]).all()


def test_one_pixel(good: dict[str, bytes]) -> None:
    assert (PREPROCESS.pixels(good["one.png"]) == [10, 200, 30]).all()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_cost_the_picture() -> None:
    broken = Image.Exif()
    broken[0x0112] = 6
    data = broken.tobytes()[:14] + b"\xff" * 12
    held = good_jpeg_with(data)
    assert decode(held).size in ((48, 32), (32, 48))


def good_jpeg_with(exif: bytes) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (48, 32)).save(held, "JPEG", exif=exif)
    return held.getvalue()


def test_every_bad_file_has_its_reason(
    bad: dict[str, tuple[bytes, str]], make_folder: Make
) -> None:
    folder = make_folder({name: content for name, (content, _) in bad.items()})
    for name, (content, words) in bad.items():
        for raw in (content, str(folder / name)):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                decode(raw)
            assert words in why(caught.value), name
            assert "0x" not in why(caught.value)


def test_a_pipe_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    for name, words in (("pipe", "regular"), ("folder", "regular"), ("gone", "no such file")):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            decode(str(tmp_path / f"{name}.jpg"))
        assert words in why(caught.value)


def test_the_whole_zoo_in_one_run(
    good: dict[str, bytes], bad: dict[str, tuple[bytes, str]], make_folder: Make
) -> None:
    folder = make_folder({**good, **{name: content for name, (content, _) in bad.items()}})
    source = open_sources([str(folder)])
    found = list(batches(source, PREPROCESS, batch_size=4))
    rows = sorted([row.number for b in found for row in b.rows])
    errors: list[Unreadable] = [error for b in found for error in b.errors]
    assert len(rows) == len(good)
    assert {os.path.basename(error.path): error.row for error in errors}.keys() == bad.keys()
    assert sorted(rows + [error.row for error in errors]) == list(range(len(source)))
    for error in errors:
        assert bad[os.path.basename(error.path)][1] in error.reason
