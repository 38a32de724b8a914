"""The commands together: help, exit codes, one line an error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner, Result

from tulip_ood.cli.app import app
from tulip_ood.detectors.registry import available
from tulip_ood.errors import DataError
from tulip_ood.version import __version__

Tulip = Callable[..., Result]


def test_methods_as_a_table_and_as_json(tulip: Tulip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    table = tulip("methods").stdout
    listed = json.loads(tulip("methods", "--json").stdout)
    assert [method["name"] for method in listed] == [method.name for method in available()]
    for method in available():
        assert method.name in table
        assert method.reference in table


def test_help_and_version_work(tulip: Tulip) -> None:
    shown = tulip("--help").stdout
    assert all(command in shown for command in ("demo", "methods", "calibrate", "score"))
    for command in ("calibrate", "score"):
        text = tulip(command, "--help").stdout
        assert "--batch-size" in text
        assert ">>>" not in text  # doctests are not help
    assert tulip("--version").stdout.strip() == f"tulip-ood {__version__}"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_without_our_letters_costs_a_letter_and_not_the_command(encoding: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tulip_ood", "methods"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "160"},
    )
    assert ran.returncode == 0, ran.stderr
    assert b"?" in ran.stdout
    assert b"tulip" in ran.stdout


def test_the_command_modules_do_not_import_torch() -> None:
    code = (
        "import sys, types; sys.modules['tulip_ood'] = m = types.ModuleType('tulip_ood')\n"
        "m.__path__ = [sys.argv[1]]\n"  # without the package's own imports
        "from tulip_ood.cli.app import app\n"
        "assert not {'torch', 'pyarrow', 'PIL', 'numpy'} & set(sys.modules), 'heavy'"
    )
    import tulip_ood

    subprocess.run([sys.executable, "-c", code, tulip_ood.__path__[0]], check=True)


def test_an_error_is_one_line_and_debug_shows_more(tulip: Tulip) -> None:
    arguments = ["score", "gone.safetensors", "val", "--out", "x.parquet"]
    result = tulip(*arguments)
    assert result.exit_code == 2
    assert result.stderr == "tulip: there is no detector file gone.safetensors\n"
    assert result.stdout == ""
    shown = CliRunner().invoke(app, ["--debug", *arguments])
    assert "gone.safetensors" in str(shown.exception)
    assert not isinstance(shown.exception, SystemExit)


def test_wrong_options_exit_with_2(tulip: Tulip) -> None:
    assert tulip("score").exit_code == 2
    assert tulip("calibrate", "m", "--batch-size", "0").exit_code == 2
    assert tulip("nonsense").exit_code == 2


def fake_demo(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    module = ModuleType("tulip_ood.cli.demo")

    def demo(fast: bool = typer.Option(False, help="Less training.")) -> None:
        """Show it.

        Example:
            >>> demo
        """
        if error is not None:
            raise error
        typer.echo(f"fast={fast}")

    module.demo = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tulip_ood.cli.demo", module)


def test_the_demo_is_found_when_it_is_asked_for(
    tulip: Tulip, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_demo(monkeypatch, None)
    assert tulip("demo", "--fast").stdout == "fast=True\n"
    assert "Show it." in tulip("--help").stdout


@pytest.mark.parametrize("when", ["import", "run"])
def test_a_missing_extra_is_named(tulip: Tulip, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    if when == "run":
        fake_demo(monkeypatch, ModuleNotFoundError("No module named 'sklearn'", name="sklearn"))
    else:
        monkeypatch.setitem(sys.modules, "tulip_ood.cli.demo", None)
    result = tulip("demo")
    assert result.exit_code == 1
    assert "pip install 'tulip-ood[demo]'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DataError("two\nlines"), 1, "tulip: two lines"),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_what_a_command_raises(
    tulip: Tulip, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, words: str
) -> None:
    fake_demo(monkeypatch, error)
    result = tulip("demo")
    assert result.exit_code == code
    assert words in result.stderr
