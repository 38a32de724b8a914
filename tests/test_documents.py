"""The documents are true: their tables come from result files, their Python runs."""

import copy
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tulip_ood

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables() -> Any:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_the_result_files_say(tables: Any) -> None:
    """If this fails, run `make tables`."""
    for document in tables.documents():
        text = document.read_text()
        assert tables.filled(text) == text, document.name


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/detectors.md", "docs/adapters.md", "docs/serving.md", "docs/why.md"],
)
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_the_python_in_the_documents_runs(
    document: str, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reader's `model`, loaders and `x` filled in by a small network."""
    monkeypatch.chdir(tmp_path)
    # For a start, not all methods: those that take long are tested elsewhere.
    monkeypatch.setattr("tulip_ood.benchmark.comparing.METHODS", ["msp", "ent", "knn", "ensemble"])
    others = copy.deepcopy(vectors.model), copy.deepcopy(vectors.model)
    for other in others:
        torch.nn.init.normal_(other[0].weight)
    names = {
        "torch": torch,
        "tulip": tulip_ood,
        "model": vectors.model,
        "model_2": others[0],
        "model_3": others[1],
        "val_loader": vectors.loader(),
        "train_loader": vectors.loader(),
        "test_loader": [vectors.test],
        "ood_loader": [vectors.ood[:100]],
        "textures": [vectors.ood],
        "cameras": [vectors.test[0] + 1],
        "x": vectors.test[0][:8],
    }
    found = blocks(document)
    assert len(found) >= 2
    for block in found:
        exec(compile(block, document, "exec"), names)
    assert "found" in names


def test_links_between_documents_hold() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_what_the_make_file_offers_is_what_the_readme_promises() -> None:
    offered = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    promised = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert promised <= offered
