"""Resize, crop and normalise: against the definition, and to JSON and back."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tulip_ood.data.preprocess import CROP_ROUNDINGS, INTERPOLATIONS, Preprocess
from tulip_ood.errors import DataError, InputError

GREY = Preprocess(None, None, (0.0,), (1.0,))
RGB = Preprocess(16, 16, (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))


@given(width=st.integers(1, 90), height=st.integers(1, 90), side=st.integers(1, 40))
def test_the_shorter_side_is_resized_as_torchvision_does(
    width: int, height: int, side: int
) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    resized = replace(RGB, resize=side, crop=None).pixels(pixels)
    shorter, longer = min(width, height), max(width, height)
    assert min(resized.shape[:2]) == side
    assert max(resized.shape[:2]) == int(side * longer / shorter)
    if resized.shape[0] != resized.shape[1]:
        assert (resized.shape[1] > resized.shape[0]) == (width > height)


def test_the_crop_is_the_centre() -> None:
    pixels = np.arange(7 * 9, dtype=np.uint8).reshape(7, 9)
    cropped = replace(GREY, crop=3).pixels(pixels)
    np.testing.assert_array_equal(cropped[..., 0], pixels[2:5, 3:6])


def test_half_of_an_odd_margin_is_rounded_as_the_library_does() -> None:
    pixels = np.arange(6 * 10, dtype=np.uint8).reshape(6, 10)  # 1.5 rows and 3.5 columns to cut
    even, down = (replace(GREY, crop=3, crop_rounding=r).pixels(pixels) for r in ("even", "down"))
    np.testing.assert_array_equal(even[..., 0], pixels[2:5, 4:7])
    np.testing.assert_array_equal(down[..., 0], pixels[1:4, 3:6])


def test_squashing_resizes_both_sides() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    squashed = replace(RGB, resize=20, crop=16, squash=True)
    whole = np.asarray(Image.fromarray(pixels).resize((20, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(squashed.pixels(pixels), whole[2:18, 2:18])
    np.testing.assert_array_equal(replace(squashed, crop=None).pixels(pixels), whole)
    as_it_is = replace(squashed, resize=None, crop=None)
    np.testing.assert_array_equal(as_it_is.pixels(pixels), pixels)


def test_a_thin_strip_can_be_squashed() -> None:
    strip = np.zeros((1, 60_000), dtype=np.uint8)
    assert replace(GREY, resize=8, squash=True).pixels(strip).shape == (8, 8, 1)


def test_resizing_is_pillows_own() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for name, kind in INTERPOLATIONS.items():
        ours = replace(RGB, resize=20, crop=None, interpolation=name).pixels(pixels)
        theirs = Image.fromarray(pixels).resize((30, 20), kind)
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_normalising_is_the_formula_whatever_the_batch() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    x = RGB.normalise(pixels)
    expected = (pixels / 255 - np.array(RGB.mean)) / np.array(RGB.std)
    torch.testing.assert_close(x, torch.from_numpy(expected).permute(0, 3, 1, 2).float())
    assert torch.equal(x[2:3], RGB.normalise(pixels[2:3]))


def test_one_mean_is_a_greyscale_network() -> None:
    pixels = replace(GREY, resize=8, crop=8).pixels(np.zeros((9, 9, 3), dtype=np.uint8))
    assert GREY.normalise(pixels[None]).shape == (1, 1, 8, 8)


numbers = st.floats(0.01, 10, allow_nan=False)


@given(
    side=st.none() | st.integers(1, 999),
    mean=st.tuples(numbers, numbers, numbers),
    std=st.tuples(numbers, numbers, numbers),
    interpolation=st.sampled_from(sorted(INTERPOLATIONS)),
    squash=st.booleans(),
    rounding=st.sampled_from(sorted(CROP_ROUNDINGS)),
)
def test_json_and_back(
    side: int | None,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    interpolation: str,
    squash: bool,
    rounding: str,
) -> None:
    made = Preprocess(side, side, mean, std, interpolation, squash, rounding)
    assert Preprocess.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_files_of_the_first_release_mean_what_they_meant() -> None:
    """Their JSON has five fields, and the fingerprint is the hash of just these."""
    old = {"resize": 16, "crop": 16, "mean": [0.4914, 0.4822, 0.4465],
           "std": [0.247, 0.2435, 0.2616], "interpolation": "bilinear"}  # fmt: skip
    assert Preprocess.from_json(old) == RGB
    assert RGB.to_json() == old
    assert RGB.fingerprint == "79f73904ad2a03a61b245bb40dd05f7df0b12613a5959f1c5d0f25e1edbf6ffb"


def test_the_fingerprint_knows_every_field() -> None:
    others = [
        replace(RGB, resize=17),
        replace(RGB, crop=15),
        replace(RGB, mean=(0.4, 0.4, 0.4)),
        replace(RGB, std=(0.2, 0.2, 0.2)),
        replace(RGB, interpolation="bicubic"),
        replace(RGB, squash=True),
        replace(RGB, crop_rounding="down"),
    ]
    assert len({p.fingerprint for p in [RGB, *others]}) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crop": 17}, "does not fit"),
        ({"resize": 0}, "at least 1"),
        ({"mean": (0.5, 0.5)}, "three numbers"),
        ({"std": (0.5, 0.0, 0.5)}, "positive"),
        ({"mean": (float("nan"),) * 3}, "finite"),
        ({"interpolation": "magic"}, "bilinear"),
        ({"squash": 1}, "true or false"),
        ({"crop_rounding": "up"}, "even, down"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(RGB, **changes)


def test_a_damaged_header_is_refused() -> None:
    with pytest.raises(InputError, match="has the fields"):
        Preprocess.from_json({"resize": 3})
    with pytest.raises(InputError, match="has the fields"):
        Preprocess.from_json(RGB.to_json() | {"rotate": 3})


def test_a_thin_strip_does_not_become_a_bomb() -> None:
    strip = np.zeros((1, 60_000), dtype=np.uint8)
    with pytest.raises(DataError, match="limit"):
        replace(GREY, resize=224, crop=224).pixels(strip)


def test_an_image_smaller_than_the_crop_is_refused_not_padded() -> None:
    with pytest.raises(DataError, match="smaller than the crop"):
        replace(GREY, crop=8).pixels(np.zeros((4, 20), dtype=np.uint8))
