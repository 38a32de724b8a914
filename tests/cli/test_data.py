"""`tulip data`: what is shown of a root, and shifted sets made from it."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tulip_ood.cli.app import Commands
from tulip_ood.cli.data import data_app
from tulip_ood.data.root import Root

from ..data.roots import listed_root, parquet_root, write_sets


def data(*arguments: object) -> Result:
    """The command as it stands below `tulip`, whose errors are one line."""
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @app.callback()
    def tulip(debug: bool = False) -> None:
        """As `tulip` has it."""

    app.add_typer(data_app, name="data")
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_table_and_its_verdict(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    result = data("check", parquet_root(tmp_path), "--json", out)
    assert result.exit_code == 0, result.output
    shown = rows(result.stdout)
    assert ["near", "tin", "3", "7,793", "incomplete"] in shown
    assert ["far", "mnist", "12", "70,000", "stand-in", "twelve", "black", "squares"] in shown
    assert ["texture", "https://www.robots.ox.ac.uk/~vgg/data/dtd/"] in shown
    assert "cifar10 can be benchmarked on 2 near and 2 far sets" in result.stdout
    assert "Nothing is here for imagenet200, imagenet" in result.stdout
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["ready"] == ["cifar10", "cifar100"]
    states = {(each["id_set"], each["role"]): each["state"] for each in found["sets"]}
    assert states["imagenet", "ninco"] == "missing"
    assert states["cifar10", "mnist"] == "stand-in"


def test_openoods_layout_looked_at_deeply(tmp_path: Path) -> None:
    listed_root(tmp_path)
    assert data("check", tmp_path, "--id", "cifar10", "--deep").exit_code == 0
    (tmp_path / "data/images_classic/tin/test/0.png").write_bytes(b"[red]no picture")
    result = data("check", tmp_path, "--id", "cifar10", "--deep")
    assert result.exit_code == 1  # the only set to judge on is damaged
    assert "damaged" in result.stdout
    assert "cifar10 cannot be benchmarked: it lacks a near or far set" in result.stdout


def test_what_is_needed_is_said_where_nothing_is_there(tmp_path: Path) -> None:
    result = data("check", parquet_root(tmp_path), "--id", "imagenet")
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "its validation images, its test images, a near or far set" in words
    assert "https://github.com/j-cb/NINCO" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "nowhere"], "no folder nowhere"),
        (["check", "{root}", "--id", "stl10"], "no protocol for the ID set 'stl10'"),
        (["check", "{root}", "--json", "/no/such/x.json"], "--json: there is no folder"),
        (["corrupt", "{root}", "--id", "cifar10", "--out", "{root}/x.csv"], "must end in"),
        (["corrupt", "{root}", "--id", "cifar100", "--out", "{root}/x.npz"], "no covariate-shift"),
        (["corrupt", "{root}", "--id", "imagenet", "--out", "{root}/x.npz"], "is not there"),
        (["corrupt", "{root}", "--id", "cifar10", "--out", "{root}/x.npz", "--corruptions", "snow"],
         "'snow' is unknown"),
        (["corrupt", "{root}", "--id", "cifar10", "--out", "{root}/x.npz", "--severities", "0"],
         "from 1 to 5"),
        (["corrupt", "{root}", "--id", "cifar10", "--out", "{root}/x.npz", "--set", "imagenet_c"],
         "one of cifar10c can be made"),
    ],
)  # fmt: skip
def test_wrong_use_is_said_in_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    parquet_root(tmp_path)
    result = data(*(part.replace("{root}", str(tmp_path)) for part in arguments))
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_sets_file_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "sets.json").write_text("{")
    result = data("check", tmp_path)
    assert result.exit_code == 2
    assert "cannot be read as JSON" in result.stderr


def test_a_corrupted_set_and_the_entry_to_copy(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    out = tmp_path / "c.parquet"
    result = data("corrupt", tmp_path, "--id", "cifar10", "--out", out, "--severities", "1,3")
    assert result.exit_code == 0, result.output
    assert "has 97 images. Name it in" in result.stdout
    entry = json.loads("{" + result.stdout.splitlines()[-1] + "}")
    assert entry["cifar10c"]["test"]["file"] == "c.parquet"
    assert entry["cifar10c"]["test"]["stand_in"].endswith("not CIFAR-10-C itself")
    write_sets(tmp_path, json.loads((tmp_path / "sets.json").read_text()) | entry)
    part = Root.open(tmp_path).part("cifar10", "cifar10c")
    assert len(part) == 97
    assert {row.path.split("/")[1] for row, _ in part.source.read()} == {"1", "3"}


def test_blur_is_what_imagenet_gets(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    sets = {"imagenet": {"file": "hundred.parquet", "list": "none"}}
    write_sets(tmp_path, sets)
    result = data("corrupt", tmp_path, "--id", "imagenet", "--out", tmp_path / "b.npz")
    assert result.exit_code == 0, result.output
    entry = json.loads("{" + result.stdout.splitlines()[-1] + "}")
    assert entry == {"blur_imagenet": {"test": {"file": "b.npz", "list": "none", "stand_in": None}}}


def test_files_that_are_there_are_not_overwritten_unasked(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    out = tmp_path / "c.npz"
    base = ["corrupt", tmp_path, "--id", "cifar10", "--severities", "1", "--out"]
    out.write_bytes(b"mine")
    result = data(*base, out)
    assert result.exit_code == 2
    assert "is there already; name another file, or add --overwrite" in result.stderr
    assert out.read_bytes() == b"mine"
    result = data(*base, out, "--overwrite")
    assert result.exit_code == 0, result.output
    assert out.read_bytes() != b"mine"


def test_the_images_of_a_set_are_never_overwritten(tmp_path: Path) -> None:
    parquet_root(tmp_path)
    root = Root.open(tmp_path)
    files = {entry.file for splits in root.sets.values() for entry in splits.values()}
    source = Path(next(iter(root.part("cifar10", "test").source.files())).path)
    link = tmp_path / "link.parquet"
    link.symlink_to(source)
    for out in (source, link, *(tmp_path / file for file in files)):
        before = out.read_bytes()
        for more in ([], ["--overwrite"]):
            result = data("corrupt", tmp_path, "--id", "cifar10", "--out", out, *more)
            assert result.exit_code == 2, out
            assert "holds the images of" in result.stderr or "must end in" in result.stderr
        assert out.read_bytes() == before
