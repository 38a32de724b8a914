"""Runs an example. `test_text.py` is collected where the extra `hf` is installed, never skipped."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "examples"
collect_ignore = [] if find_spec("transformers") else ["test_text.py"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script with arguments; what it prints."""
    monkeypatch.syspath_prepend(SCRIPTS)

    def run(name: str, *arguments: object) -> str:
        script = SCRIPTS / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        with torch.random.fork_rng():
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run
