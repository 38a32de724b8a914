"""Corruptions: what each does to an image, that severities grow, that draws repeat."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tulip_ood.data.corrupted_part import blur_part, corrupt_part
from tulip_ood.data.corruptions import CORRUPTIONS, SEVERITIES, blur, corrupt
from tulip_ood.data.decoding import decode
from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.root import Part, Root
from tulip_ood.errors import DataError, InputError

from .roots import parquet_root, write_parquet, write_sets

RANDOM = ("gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog")


def scene(side: int = 32) -> NDArray[np.uint8]:
    """Waves of several lengths and colours, away from the ends of the range."""
    y, x = 2 * np.pi * np.mgrid[:side, :side] / side
    wave = 30 * np.sin(3.1 * x + 1.7 * y) + 25 * np.sin(5.3 * y - 2.2 * x) + 15 * np.sin(9 * x)
    return np.stack([110 + wave, 90 + 0.5 * wave, 150 - wave], axis=-1).astype(np.uint8)


def distance(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.abs(a.astype(float) - b).mean())


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("side", [32, 97])
def test_every_severity_changes_the_image_more(kind: str, side: int) -> None:
    image = scene(side)
    kept = image.copy()
    # Saturation first goes down, then up: severities 2 and 3 lie on two sides.
    levels = (3, 4, 5) if kind == "saturate" else SEVERITIES
    changed = [corrupt(image, kind, severity) for severity in levels]
    far = [distance(each, image) for each in changed]
    assert all(each.shape == image.shape and each.dtype == np.uint8 for each in changed)
    assert far[0] > 0.4
    assert far == sorted(far)
    assert np.array_equal(image, kept)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_draws_depend_on_seed_and_row_alone(kind: str) -> None:
    image = scene()
    here = corrupt(image, kind, 3, seed=1, row=4)
    assert np.array_equal(here, corrupt(image, kind, 3, seed=1, row=4))
    for other in ({"seed": 2, "row": 4}, {"seed": 1, "row": 5}):
        assert np.array_equal(here, corrupt(image, kind, 3, **other)) == (kind not in RANDOM)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 3), (40, 23, 3)])
def test_any_size_will_do(kind: str, shape: tuple[int, int, int]) -> None:
    for image in (np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)):
        assert corrupt(image, kind, 5).shape == shape


def test_noise_has_the_moments_that_it_should() -> None:
    grey = np.full((120, 120, 3), 128, np.uint8)
    x = corrupt(grey, "gaussian_noise", 3) / 255
    assert x.std() == pytest.approx(0.07, rel=0.03)
    # Of Poisson counts k with mean 100·x, k / 100 has the variance x / 100.
    x = corrupt(grey, "shot_noise", 3) / 255
    assert x.mean() == pytest.approx(128 / 255, abs=0.003)
    assert x.var() == pytest.approx(128 / 255 / 100, rel=0.05)
    hit = corrupt(grey, "impulse_noise", 5) != 128
    assert hit.mean() == pytest.approx(0.11, abs=0.01)


def test_blurs_keep_the_mean_and_an_even_image() -> None:
    image = scene()
    for kind in ("gaussian_blur", "defocus_blur", "motion_blur"):
        assert corrupt(image, kind, 5).mean() == pytest.approx(image.mean(), abs=2.0)
        assert (corrupt(np.full_like(image, 77), kind, 5) == 77).all()


def test_a_blurred_point_is_a_gaussian() -> None:
    image = np.zeros((33, 33, 3), np.uint8)
    image[16, 16] = 255
    x, sigma = np.arange(33) - 16, 2.0
    bell = np.exp(-(x**2) / (2 * sigma**2))
    expected = 255 * np.outer(bell, bell) / bell.sum() ** 2
    assert np.abs(blur(image)[..., 1] - expected).max() <= 0.51
    with pytest.raises(InputError, match="sigma"):
        blur(image, 0)


def test_light() -> None:
    image = scene()
    assert corrupt(image, "brightness", 3).max(axis=2).mean() > image.max(axis=2).mean() + 50
    spread = corrupt(image, "contrast", 5).std(axis=(0, 1)) / image.std(axis=(0, 1))
    assert spread == pytest.approx(0.18, abs=0.02)
    grey = image.mean(axis=2, keepdims=True)
    assert np.abs(corrupt(image, "saturate", 2) - grey).mean() < np.abs(image - grey).mean()


def test_what_is_refused() -> None:
    image = scene()
    with pytest.raises(InputError, match="unknown corruption 'snow'.*gaussian_noise"):
        corrupt(image, "snow", 1)
    with pytest.raises(InputError, match="1 to 5, got 6"):
        corrupt(image, "fog", 6)
    with pytest.raises(InputError, match=r"expected a uint8 image \[H, W, 3\]"):
        corrupt(image[..., 0], "fog", 1)


# ---------------------------------------------------------------------- whole sets


def squares(tmp_path: Path, n: int = 60) -> Part:
    write_parquet(tmp_path / "a.parquet", [i % 10 for i in range(n)], [f"{i}" for i in range(n)])
    return Part("cifar10", "test", open_sources([str(tmp_path / "a.parquet")]))


def test_a_set_is_written_in_both_formats_alike(tmp_path: Path) -> None:
    part = squares(tmp_path)
    said: list[tuple[int, int]] = []
    for suffix in ("parquet", "npz"):
        out = tmp_path / f"c.{suffix}"
        n = corrupt_part(part, out, seed=3, progress=lambda *done: said.append(done))
        assert n == 60
    assert said[-1] == (60, 60)
    parquet, npz = (open_sources([str(tmp_path / f"c.{s}")]) for s in ("parquet", "npz"))
    assert list(parquet.labels()) == list(npz.labels()) == list(part.source.labels())
    paths = []
    for i, ((row, raw), (_, pixels)) in enumerate(zip(parquet.read(), npz.read(), strict=True)):
        assert np.array_equal(np.array(decode(raw)), pixels)
        kind, severity, name = row.path.split("/")
        original = np.array(decode(next(iter(part.source.read(i)))[1]))
        assert np.array_equal(corrupt(original, kind, int(severity), seed=3, row=i), pixels)
        assert name == str(i)
        paths.append(kind)
    assert len(set(paths)) > 8
    assert list(np.load(tmp_path / "c.npz")["path"][:1]) == [next(iter(parquet.read()))[0].path]


def test_another_seed_is_another_draw(tmp_path: Path) -> None:
    part = squares(tmp_path)
    for seed in (0, 1):
        corrupt_part(part, tmp_path / f"{seed}.parquet", ("fog", "jpeg"), (2, 5), seed=seed)
    drawn = [
        [row.path[:-2] for row, _ in open_sources([str(tmp_path / f"{seed}.parquet")]).read()]
        for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]
    assert {"/".join(path.split("/")[:2]) for path in drawn[0]} == {
        "fog/2", "fog/5", "jpeg/2", "jpeg/5",
    }  # fmt: skip


def test_the_written_set_can_be_named_in_sets_json(tmp_path: Path) -> None:
    root = Root.open(parquet_root(tmp_path))
    corrupt_part(root.part("cifar10", "test"), tmp_path / "c.parquet")
    write_sets(tmp_path, {"cifar10c": {"file": "c.parquet", "stand_in": "made here"}})
    part = Root.open(tmp_path).part("cifar10", "cifar10c")
    assert list(part.source.labels()) == list(root.part("cifar10", "test").source.labels())


def test_blurred_and_prepared_sets(tmp_path: Path) -> None:
    part = squares(tmp_path, 3)
    assert blur_part(part, tmp_path / "b.parquet") == 3
    first = next(iter(open_sources([str(tmp_path / "b.parquet")]).read()))
    assert first[0].path == "blur/2/0"
    prepare = Preprocess(16, 12, (0.5,) * 3, (0.5,) * 3)
    corrupt_part(part, tmp_path / "p.npz", prepare=prepare)
    assert np.load(tmp_path / "p.npz")["x"].shape == (3, 12, 12, 3)


def test_nothing_is_left_behind_when_an_image_is_broken(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("gone.png 0\n")
    part = Part("cifar10", "test", open_sources([str(tmp_path / "list.txt")]))
    with pytest.raises(DataError, match="row 0, .*gone.png: there is no such file"):
        corrupt_part(part, tmp_path / "c.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["list.txt"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    part = squares(tmp_path, 2)
    with pytest.raises(InputError, match=r"must end in .parquet or .npz"):
        corrupt_part(part, tmp_path / "c.csv")
    with pytest.raises(InputError, match="nothing to draw from"):
        corrupt_part(part, tmp_path / "c.npz", [])
    with pytest.raises(InputError, match="unknown corruption"):
        corrupt_part(part, tmp_path / "c.npz", ["snow"])
    np.savez(tmp_path / "ready.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    ready = Part("cifar10", "test", open_sources([str(tmp_path / "ready.npz")]))
    with pytest.raises(DataError, match="already normalised"):
        corrupt_part(ready, tmp_path / "c.npz")
