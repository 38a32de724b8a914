"""Scales, paths, thumbnails and colours."""

import base64
import io
import re
from importlib import resources

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tulip_ood.errors import InputError
from tulip_ood.report.gallery import thumbnail
from tulip_ood.report.html import element, join
from tulip_ood.report.plot import line_path
from tulip_ood.report.scale import Scale, score_scale

finite = st.floats(-1e9, 1e9)


@settings(deadline=None)
@given(low=finite, width=st.floats(1e-6, 1e9), about=st.integers(1, 10))
def test_ticks_lie_on_the_axis(low: float, width: float, about: int) -> None:
    scale = Scale(low, low + max(width, 1e-9 * abs(low)), 0.0, 100.0)
    ticks = scale.ticks(about)
    assert len(ticks) <= about + 1
    slack = 1e-6 * (scale.high - scale.low)
    for value, text in ticks:
        assert scale.low - slack <= value <= scale.high + slack
        assert text
    places = [scale(value) for value, _ in ticks]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("scale", "texts"),
    [
        (Scale(0, 1, 0, 1), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (Scale(0, 40, 0, 1), ["0", "10", "20", "30", "40"]),
        (Scale(-1, 1, 0, 1), ["−1", "−0.5", "0", "0.5", "1"]),
        (Scale(1e-5, 2, 0, 1, log=True), ["1", "0.01", "10⁻⁴"]),
    ],
)
def test_ticks_read_well(scale: Scale, texts: list[str]) -> None:
    assert [text for _, text in scale.ticks(5 if not scale.log else 3)] == texts


def test_edges_are_evenly_spaced_on_paper() -> None:
    for scale in (Scale(2, 5, 10, 90), Scale(1e-4, 10, 10, 90, log=True)):
        places = torch.tensor([scale(edge) for edge in scale.edges(8)])
        assert torch.allclose(places, torch.linspace(10, 90, 9))


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_any_scores_have_an_axis(values: list[float]) -> None:
    scale = score_scale([torch.tensor(values, dtype=torch.float64)], 0.0, 100.0)
    assert scale.low < scale.high
    assert all(0.0 <= scale(value) <= 100.0 for value in values if value == value)
    assert all(text for _, text in scale.ticks())


def test_paths_keep_their_shape() -> None:
    stairs = [(0, 0), (0, 1), (0, 5), (3, 5), (4, 5), (4, 5), (9, 5), (9, 2)]
    assert line_path(stairs) == "M0 0L0 5L9 5L9 2"
    assert line_path([(0, 0), (5, 0), (2, 0)]) == "M0 0L5 0L2 0"  # turning back is no straight line


@pytest.mark.parametrize("channels", [1, 3])
def test_thumbnails_show_the_picture(channels: int) -> None:
    image = torch.rand(channels, 6, 8, generator=torch.Generator().manual_seed(0))
    data = base64.b64decode(thumbnail(image).split(",")[1])
    shown = Image.open(io.BytesIO(data))
    assert shown.size == (8, 6)
    pixels = torch.tensor(list(shown.tobytes())).reshape(6, 8, channels)
    assert torch.equal(pixels, (255 * image).round().long().movedim(0, -1))


def test_large_pictures_become_small() -> None:
    data = thumbnail(torch.zeros(3, 600, 300, dtype=torch.uint8)).split(",")[1]
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (64, 128)


def test_pictures_out_of_range_are_clipped_and_odd_ones_refused() -> None:
    thumbnail(torch.tensor([[[float("nan"), 7.0, -3.0]]]))
    with pytest.raises(InputError, match=r"must be \[1 or 3, H, W\], got \[2, 4, 4\]"):
        thumbnail(torch.zeros(2, 4, 4))


def luminance(colour: str) -> float:
    if len(colour) == 4:  # #abc is short for #aabbcc
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def schemes() -> dict[str, dict[str, str]]:
    style = resources.files("tulip_ood.report").joinpath("style.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)
    light, dark, paper = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", b)) for b in blocks)

    return {"light": light, "dark": dark, "print": paper}


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_contrast(scheme: str) -> None:
    colours = schemes()[scheme]
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for line in ("focus", "baseline", "s1", "s2", "s3", "s4", "s5", "s6"):
            assert contrast(colours[line], colours[ground]) >= 3.0, (line, ground)
    for text, ground in (("yes", "yes-soft"), ("no", "no-soft"), ("ink", "accent-soft")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_a_number_and_its_per_cent_sign_stay_on_one_line() -> None:
    assert (
        join(["right on 96.8 % of ", element("b", "5 %")]) == "right on 96.8\xa0% of <b>5\xa0%</b>"
    )
    assert join("a % b") == "a % b"
    assert element("pre", ["5 %"]) == "<pre>5 %</pre>"
