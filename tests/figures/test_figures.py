"""Every figure in a small version: its files, its numbers, and what the theory says of them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tulip_ood.errors import FileFormatError, InputError, TulipError
from tulip_ood.figures import bound_classification, bound_regression, canvas, closeness
from tulip_ood.figures.canvas import Drawn
from tulip_ood.figures.closeness_sides import Sides, measure_sides
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

CURVE = bound_regression.Settings(points=7, grid=61, time=400.0, draws=12)
MAPS = bound_classification.Settings(
    points=24, side=13, draws=12, time=60.0, width=24, steps=40, held_out=80
)


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    return bound_regression.draw(tmp_path_factory.mktemp("curve"), CURVE)


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    return bound_classification.draw(tmp_path_factory.mktemp("maps"), MAPS)


def table(drawn: Drawn, **where: Any) -> dict[str, torch.Tensor]:
    """The numbers of some rows of the parquet file, by column."""
    rows = pq.read_table(drawn.table).to_pylist()
    chosen = [row for row in rows if all(row[key] == value for key, value in where.items())]
    assert chosen
    return {
        key: torch.tensor([row[key] for row in chosen], dtype=torch.float64)
        for key, value in chosen[0].items()
        if isinstance(value, int | float)
    }


def check_files(drawn: Drawn, name: str) -> None:
    png, svg = drawn.pictures
    assert [path.name for path in drawn.files] == [f"{name}.png", f"{name}.svg", f"{name}.parquet"]
    assert sorted(png.parent.iterdir()) == sorted(drawn.files)
    with Image.open(png) as image:
        assert image.info["dpi"] == pytest.approx((160, 160), abs=0.1)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    text = svg.read_text()
    assert text.rstrip().endswith("</svg>")
    assert "dc:date" not in text
    assert pq.read_table(drawn.table).to_pylist() == drawn.rows
    facts = json.loads(pq.read_schema(drawn.table).metadata[b"facts"])
    assert facts == drawn.facts


def test_the_curve_is_written(curve: Drawn) -> None:
    check_files(curve, "bound-regression")
    assert len(curve.rows) == 61 + 7
    assert any("log₁₀ C" in line for line in curve.lines)


def test_the_bound_holds_the_ensemble_and_touches_it_where_c_is_fitted(curve: Drawn) -> None:
    grid = table(curve)
    assert (grid["bound_shape"] >= grid["ensemble_2std"] - 1e-9).all()
    assert (grid["ensemble_2std"] >= 0).all()
    here = grid["fitted_here"] == 1
    assert int(here.sum()) == 1
    assert torch.allclose(grid["bound_shape"][here], grid["ensemble_2std"][here])


def test_at_training_points_only_the_offset_is_left(curve: Drawn) -> None:
    at, away = table(curve, role="train"), table(curve, role="grid")
    assert (at["gradient_distance"] == 0).all()
    assert torch.allclose(at["bound_shape"], torch.tensor(curve.facts["fitted_offset"]).double())
    left = 2 * curve.facts["alpha"] + curve.facts["beta"]
    assert torch.allclose(at["bound_short_paper"], torch.tensor(left).double())
    assert (at["ensemble_mean"] - at["curve"]).abs().max() < 0.1  # trained
    assert away["ensemble_2std"].max() > 10 * at["ensemble_2std"].max()


def test_the_literal_bound_is_never_broken_and_too_large_to_draw_for_long_training(
    curve: Drawn,
) -> None:
    grid, facts = table(curve), curve.facts
    for kind in ("paper", "frobenius"):
        assert (grid["moved_most"] <= grid[f"bound_short_{kind}"]).all()
        assert facts[f"log10_C_time_{kind}"] > 308  # beyond every float
        assert 0 < facts[f"tightness_short_{kind}"] < 1
    assert facts["lambda_max_frobenius"] <= facts["lambda_max_paper"]


def test_equal_settings_give_equal_bytes(curve: Drawn, tmp_path: Path) -> None:
    again = bound_regression.draw(tmp_path, CURVE)
    for first, second in zip(curve.files, again.files, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_the_maps_are_written(maps: Drawn) -> None:
    check_files(maps, "bound-classification")
    assert len(maps.rows) == 2 * (13**2 + 24)
    assert {row["problem"] for row in maps.rows} == {"two moons", "spiral"}


@pytest.mark.parametrize("problem", ["two moons", "spiral"])
def test_distance_and_spread_are_small_at_the_data(maps: Drawn, problem: str) -> None:
    at = table(maps, problem=problem, role="train")
    away = table(maps, problem=problem, role="grid")
    assert at["gradient_distance"].max() < 1e-6 * away["gradient_distance"].max()
    assert (away["gradient_distance"] > 0).all()
    assert at["ensemble_std"].mean() < 0.5 * away["ensemble_std"].mean()
    assert away["ensemble_std"].max() <= 0.53  # probabilities, 12 draws
    assert (away["tulip_score"] >= 0).all()
    assert (away["tulip_score"] <= torch.log(torch.tensor(2.0)) + 1e-6).all()
    near, far = (
        maps.facts[f"{problem}: spread_in_the_{half}_half"] for half in ("nearer", "farther")
    )
    assert near < far


def test_grid_inputs_lie_where_the_picture_shows_them(maps: Drawn) -> None:
    first = next(row for row in maps.rows if row["role"] == "grid")
    second = maps.rows[1]
    assert (first["first"], first["second"]) == (-3.5, -3.5)  # below, left
    assert second["first"] > first["first"]  # to the right first, then up
    assert second["second"] == first["second"]


def network(module: torch.nn.Module) -> Network:
    return Network(module, make_task("classification"))


def test_closeness_is_drawn_for_networks(tmp_path: Path, vectors: Any) -> None:
    x = vectors.val[0]
    sides = measure_sides(
        network(vectors.model), x[:10], {"ID": x[10:16], "in X": x[:2], "far": 50 * x[:5]},
        title="blobs",
    )  # fmt: skip
    sides.save(tmp_path / "sides.json")
    drawn = closeness.draw([sides, replace(sides, title="again")], tmp_path / "both")
    check_files(drawn, "closeness")
    inside = table(drawn, network="blobs", group="in X")
    assert inside["nearest"].abs().max() < 1e-8 * inside["allowed"].max()
    assert drawn.facts["again, in X: A5 holds"] == 1.0
    for row in drawn.rows:
        assert row["allowed"] >= 0
        assert row["holds"] == (row["nearest"] <= row["allowed"])
    kept = closeness.draw([Sides.load(tmp_path / "sides.json")], tmp_path / "kept")
    assert kept.rows == drawn.rows[: len(kept.rows)]


def test_closeness_refuses_too_many_images(vectors: Any) -> None:
    x = vectors.val[0]
    for train, test in ((x[:65], {"a": x[:2]}), (x[:2], {"a": x[:65]}), (x[:2], {})):
        with pytest.raises(InputError, match="expected 1 to 64 inputs|1 to 7 groups"):
            measure_sides(network(vectors.model), train, test)


@pytest.mark.parametrize("text", ["", "[]", '{"format": "tulip-closeness-1", "groups": 3}', "{}"])
def test_other_files_are_no_sides(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"x\.json"):
        Sides.load(tmp_path / "x.json")


def test_without_matplotlib_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    x = vectors.val[0][:2]
    sides = measure_sides(network(vectors.model), x, {"a": x})
    for draw in (
        lambda: bound_regression.draw(tmp_path),
        lambda: bound_classification.draw(tmp_path),
        lambda: closeness.draw([sides], tmp_path),
    ):
        with pytest.raises(TulipError, match=r"pip install 'tulip-ood\[figures\]'"):
            draw()
    assert list(tmp_path.iterdir()) == []


def test_nothing_appears_if_one_file_cannot_be_written(tmp_path: Path) -> None:
    with canvas.canvas(2, 2) as figure:
        figure.subplots()
        with pytest.raises(TypeError):  # not JSON
            canvas.save(figure, "x", tmp_path, [{"a": 1}], {"bad": object()})
    assert list(tmp_path.iterdir()) == []


def test_the_style_of_the_user_neither_counts_nor_changes(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 40.0, "axes.facecolor": "red"}):
        with canvas.canvas(2, 2) as figure:
            assert figure.subplots().get_facecolor()[:3] == (1, 1, 1)
        assert matplotlib.rcParams["font.size"] == 40.0
    assert dict(matplotlib.rcParams) == before


def test_settings_that_cannot_be_drawn_are_refused() -> None:
    for make, wrong in (
        (bound_regression.Settings, {"time": 0.0}),
        (bound_regression.Settings, {"short": float("inf")}),
        (bound_regression.Settings, {"grid": 1}),
        (bound_classification.Settings, {"draws": 1}),
        (bound_classification.Settings, {"time": -1.0}),
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            make(**wrong)
