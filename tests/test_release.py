"""What a release needs: one version, pinned versions of everything, workflows that can run."""

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import tulip_ood

ROOT = Path(tulip_ood.__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirement: str) -> str:
    return plain(re.split(r"[^A-Za-z0-9._-]", requirement)[0])


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == tulip_ood.__version__


def test_the_types_travel_with_the_package() -> None:
    assert (ROOT / "src" / "tulip_ood" / "py.typed").exists()


def test_what_continuous_integration_installs_is_pinned() -> None:
    """Everything that the extra `dev` brings, and what that brings."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {plain(line.partition("==")[0]) for line in lines}
    assert len(pinned) == len(lines), "a package is pinned twice"
    extras = PROJECT["optional-dependencies"]
    wanted = {required(r) for r in (*PROJECT["dependencies"], *extras["dev"], *extras["docs"])}
    seen: set[str] = set()
    while wanted - seen - {"tulip-ood"}:
        name = (wanted - seen - {"tulip-ood"}).pop()
        seen.add(name)
        for line in metadata.requires(name) or ():
            if ";" not in line:  # extras, and other platforms
                wanted.add(required(line))
    # What PyPI's build of PyTorch for GPUs brings is not ours to pin.
    assert {name for name in seen - pinned if not name.startswith(("nvidia", "triton"))} == set()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_what_is_there(file: Path) -> None:
    held = yaml.safe_load(file.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert held["permissions"] == {"contents": "read"}  # more only where a job needs it
    for job in held["jobs"].values():
        for step in job["steps"]:
            check_step(step, targets)


def check_step(step: dict[str, Any], targets: set[str]) -> None:
    if "uses" in step:  # pinned to a major version, or to a branch that is one
        assert re.fullmatch(r"(actions|pypa)/[\w-]+@(v\d+|release/v\d+)", step["uses"])
    called = re.findall(r"make ([a-z-]+)", step.get("run", ""))
    assert set(called) <= targets


def test_there_are_workflows_for_tests_docs_and_publishing() -> None:
    assert [file.stem for file in WORKFLOWS] == ["docs", "publish", "test"]
    published = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    assert published["jobs"]["publish"]["permissions"] == {"id-token": "write"}  # no token


def test_hooks_before_a_commit_come_from_the_same_environment() -> None:
    held = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in held["repos"] for hook in repo["hooks"]]
    assert {"ruff-check", "ruff-format", "mypy"} <= {hook["id"] for hook in hooks}
    assert all(repo["repo"] == "local" for repo in held["repos"])
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
