"""The documents are true: their tables come from result files, their Python runs."""

import copy
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from typer.core import TyperGroup

import tulip_ood
from tulip_ood.cli.app import app
from tulip_ood.detectors.registry import available, class_of

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


PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
# Needs Ray: tests/cluster runs it. Lines of scripts: tests/examples runs and compares them.
ELSEWHERE = ("docs/cluster.md", "docs/examples.md")
WITH_PYTHON = [
    page for page in PAGES if "```python" in (ROOT / page).read_text() and page not in ELSEWHERE
]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_as_many_architectures_as_in_the_table() -> None:
    rows = (ROOT / "docs/architectures.md").read_text().partition("table: architectures")[2]
    shown = re.findall(r"^\| (?:transformers|timm|torchvision) .*$", rows, re.MULTILINE)
    refused = sum("refused" in row for row in shown)
    assert f"[{len(shown)} architectures]" in (ROOT / "README.md").read_text()
    said = " ".join((ROOT / "docs/export.md").read_text().split())
    assert f"[{len(shown)} architectures](architectures.md), {len(shown) - refused} were" in said


@pytest.mark.parametrize("document", WITH_PYTHON)
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.usefixtures("short_search")
def test_the_python_in_the_documents_runs(
    document: str, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reader's `model`, loaders and `x` filled in by a small network."""
    monkeypatch.chdir(tmp_path)
    # For a start, not all methods: those that take long are tested elsewhere.
    monkeypatch.setattr("tulip_ood.benchmark.entries.METHODS", ["msp", "ent", "knn", "ensemble"])
    monkeypatch.setattr("tulip_ood.benchmark.entries.COMPOSITIONS", ["gen+react"])
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
    with torch.random.fork_rng():
        for block in blocks(document, "python"):
            exec(compile(block, document, "exec"), names)


# -------------------------------------------------------------------------------- shell


def commands(document: str) -> list[list[str]]:
    """The words of every command in a page's shell blocks; lines that go on are joined."""
    found = []
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                found.append(words)
    return found


def check_tulip(words: list[str]) -> None:
    """The subcommand is there, and has every option that is given to it."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        found = command.get_command(typer.Context(command), rest[0])
        if found is None:
            assert len(rest) < len(words), f"there is no tulip {rest[0]}"
            break  # an argument: `tulip bench cifar10`
        command = found
        rest.pop(0)
    known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
    if isinstance(command, TyperGroup):
        known |= {n for c in command.commands.values() for p in c.params for n in p.opts}
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert given <= known, f"tulip {' '.join(words)}: {given - known}"


@pytest.mark.parametrize("document", PAGES)
def test_the_commands_in_the_documents_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for program, *rest in commands(document):
        if program == "tulip":
            check_tulip([word for word in rest if word not in ("…", "...")])
        elif program == "make":
            assert {word for word in rest if "=" not in word} <= targets, rest
        else:
            assert program in {"pip", "python", "cd", "git", "pre-commit", "curl"}, program


# ------------------------------------------------------------------------------- the site


def test_every_page_has_its_place() -> None:
    nav = tool("site_nav")
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    listed = [page for section in nav.pages(ROOT / "docs").values() for page in section]
    assert sorted(listed) == sorted(there)


def test_a_picture_opens_in_its_full_size() -> None:
    shown = '<p>See <img alt="a > b" src="../images/a.png" /> and <em>b</em>.</p>'
    linked = tool("site_pictures").on_page_content(shown, page=None, config=None, files=None)
    assert linked == (
        '<p>See <a class="picture" href="../images/a.png"><img alt="a > b" src="../images/a.png" />'
        "</a> and <em>b</em>.</p>"
    )


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_loads_nothing_from_outside() -> None:
    """Scripts, styles, fonts and pictures; links that a reader may follow are another matter."""
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config
    assert not re.search(r"https?://", config)
    for page in PAGES[1:]:
        text = (ROOT / page).read_text()
        assert not re.search(r"!\[[^]]*\]\(https?:|<(script|img|link)[^>]*https?:", text), page


def test_links_between_documents_hold() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_the_api_has_whatever_can_be_imported() -> None:
    """The names of `import tulip_ood`, and the class of every method."""
    shown = {
        name
        for page in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
    }
    things = [getattr(tulip_ood, name) for name in tulip_ood.__all__]
    things += [class_of(method.name) for method in available()]
    for thing in things:
        if callable(thing) and not isinstance(thing, ModuleType):
            name = f"{thing.__module__}.{thing.__qualname__}"
            assert name in shown or thing.__module__ in shown, name


def test_what_the_site_links_to_is_in_the_site() -> None:
    """`docs/changelog.md` and its like take in a file of the root, whose links start from there."""
    for document in (ROOT / "docs").rglob("*.md"):
        text = document.read_text()
        for name in re.findall(r'^--8<-- "(.*)"$', text, flags=re.MULTILINE):
            text += (ROOT / name).read_text()
        for target in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", text):
            found = (document.parent / target).resolve()
            assert found.exists(), f"{document.name} → {target}"
            assert found.is_relative_to(ROOT / "docs"), f"{document.name} → {target}"


def test_the_strict_build_of_the_site_counts_warnings() -> None:
    """With `--quiet` mkdocs sees no warning, and `--strict` has nothing to fail on."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    builds = [line for line in lines if "mkdocs build" in line and "echo" not in line]
    assert len(builds) == 2
    for line in builds:
        assert "--strict" in line
        assert "--quiet" not in line


def test_what_the_make_file_offers_is_what_the_readme_promises() -> None:
    offered = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    promised = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert promised <= offered
