"""Every example runs, quickly, as a user would run it; the page shows what stands in them."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples"


def check_numbers(numbers: dict[str, Any], picture: Path) -> None:
    """Shares are shares, and there is something to look at."""
    for name, found in numbers["methods"].items():
        assert 0.5 < found["kept"] <= 1, name
        assert set(found["auroc"]) == set(found["refused"])
        assert all(0 <= x <= 1 for part in ("auroc", "refused") for x in found[part].values())
    with Image.open(picture) as image:
        assert image.width >= 1400
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50


@pytest.mark.parametrize("name", ["tabular", "regression", "segmentation"])
def test_an_example_gives_numbers_and_a_picture(name: str, example: Any, tmp_path: Path) -> None:
    numbers = json.loads(example(name, "--quick", "--json", "--out", tmp_path))
    check_numbers(numbers, tmp_path / f"{name}.png")
    if name == "tabular":
        unit = {
            method: found["auroc"]["other unit"] for method, found in numbers["methods"].items()
        }
        assert unit["TULiP, bound"] > 0.9 > 0.5 > unit["entropy"]


def test_pictures_go_into_a_folder_of_their_own(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = example("tabular", "--quick")
    assert [path.name for path in tmp_path.iterdir()] == ["tulip-examples"]
    picture = tmp_path / "tulip-examples" / "tabular.png"
    assert picture.is_file()
    assert out.splitlines()[-1] == f"picture: {picture.resolve()}"


def test_a_place_that_is_no_folder_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import common  # type: ignore[import-not-found]

    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["tabular", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit):
        common.main("tabular", lambda *given: 1 / 0, lambda *given: None)
    assert "file: no folder can be made there (File exists)" in capsys.readouterr().err


def test_a_guarded_folder(example: Any) -> None:
    out = example("guard_a_classifier", "--quick")
    assert "1 × invoice          to a person" in out
    total = sum(int(n) for n in re.findall(r"^ *(\d+) ×", out, flags=re.MULTILINE))
    assert total == 4 * 20 + 1


def test_the_texts_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every Python's standard library, without transformers."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import docstrings  # type: ignore[import-not-found]

    known = {topic: docstrings.passages(modules) for topic, modules in docstrings.TOPICS.items()}
    assert all(len(texts) >= 300 for texts in known.values())
    assert all(20 <= len(text.split()) <= 60 for texts in known.values() for text in texts)
    odd = docstrings.unfamiliar(random.Random(0))
    assert all(len(texts) >= 250 for texts in odd.values()), {k: len(v) for k, v in odd.items()}


def test_the_page_shows_lines_of_the_scripts() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    found = re.findall(r"`examples/(\w+)\.py`.*?```python\n(.*?)```", page, flags=re.DOTALL)
    assert {name for name, _ in found} == {path.stem for path in SCRIPTS.glob("*.py")} - {
        "common",
        "docstrings",
        "shapes",
    }
    for name, block in found:
        lines = {line.strip() for line in (SCRIPTS / f"{name}.py").read_text().splitlines()}
        strange = [
            line for line in block.splitlines() if line.strip() and line.strip() not in lines
        ]
        assert strange == [], name


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 150
