"""The example for text, with a real DistilBERT of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_text(example: Any, tmp_path: Path) -> None:
    numbers = json.loads(example("text", "--quick", "--json", "--out", tmp_path))
    sets = {"another topic", "source code", "German", "keyboard"}
    assert set(numbers["methods"]["tulip"]["auroc"]) == sets
    assert (tmp_path / "text.png").stat().st_size > 20_000
