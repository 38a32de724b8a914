"""`import tulip_ood` is instant: what is heavy is imported when it is asked for."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tulip_ood

ROOT = Path(tulip_ood.__file__).parents[2]
# Every dependency, those of extras too, by the name that it is imported by.
OTHERS = {"scikit-learn": "sklearn", "pillow": "PIL", "efficientnet-lite-pytorch": "efficientnet"}
LIGHT = {"torch", "numpy", "safetensors"}


def loaded_after(code: str, inner: str = "") -> set[str]:
    """The modules that are loaded; with `inner`, those below that package."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    names = [name for name in done.stdout.decode().split() if name.startswith(inner)]
    return {name.removeprefix(inner) for name in names if "." not in name.removeprefix(inner)}


def dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[^a-zA-Z0-9_.-]", requirement)[0].lower() for requirement in wanted}
    return {OTHERS.get(name, name).replace("-", "_") for name in names - {"tulip-ood"}}


def test_the_package_alone_loads_nothing_of_others() -> None:
    assert loaded_after("import tulip_ood") & dependencies() == set()


def test_a_detector_loads_torch_and_little_else() -> None:
    found = loaded_after("import tulip_ood; tulip_ood.Tulip, tulip_ood.load")
    before = loaded_after("import torch")
    assert (found - before) & dependencies() <= LIGHT


def test_the_command_says_what_it_can_without_torch() -> None:
    found = loaded_after("import tulip_ood.cli.app")
    assert found & dependencies() <= {"typer", "rich"}


def test_every_detector_is_there_when_it_is_asked_for() -> None:
    assert dir(tulip_ood.detectors) == sorted(tulip_ood.detectors.__all__)
    for name in tulip_ood.detectors.__all__:
        assert getattr(tulip_ood.detectors, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Magic'"):
        tulip_ood.detectors.Magic  # noqa: B018
    loaded = loaded_after("import tulip_ood; tulip_ood.Tulip", inner="tulip_ood.detectors.")
    assert "gram" not in loaded
