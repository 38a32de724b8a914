"""What is said of an error in the network's own code: one line, with the line it came from."""

import importlib
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.errors import place_in_network
from tulip_ood.models.spec import load_model

from .conftest import PREPARED, Tulip

KINDS = {
    "key": "KeyError: 'mask'",
    "module": "ModuleNotFoundError: No module named 'tulip_not_installed'",
    "library": "TypeError: linear(): argument 'weight'",
}


@pytest.fixture
def commands(project: Path, tulip: Tulip, tmp_path: Path) -> dict[str, list[object]]:
    """Both, for a network that does what it should until a test asks otherwise."""
    file = tmp_path / "detector.safetensors"
    fit = ["calibrate", "tulip_tiny:failing", "--data", "val", "--method", "msp", *PREPARED]
    assert tulip(*fit, "--out", file).exit_code == 0
    place = ["--model", "tulip_tiny:failing", "--out", tmp_path / "scores.parquet"]
    return {
        "calibrate": [*fit, "--out", tmp_path / "new.safetensors"],
        "score": ["score", file, "test", *place],
    }


@pytest.mark.parametrize("fails", KINDS)
@pytest.mark.parametrize("command", ["calibrate", "score"])
def test_one_line_that_names_the_users_line(
    command: str,
    fails: str,
    tulip: Tulip,
    commands: dict[str, list[object]],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAILS", fails)
    result = tulip(*commands[command])
    assert result.exit_code == 1
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith(f"tulip: the network's own code failed with {KINDS[fails]}")
    file = project / "tulip_tiny.py"
    found = re.search(rf"in Failing\.forward \({re.escape(str(file))}, line (\d+)\)", said)
    assert found is not None
    line = file.read_text().splitlines()[int(found[1]) - 1]
    assert any(word in line for word in ('{}["mask"]', "tulip_not_installed", "linear(x, None)"))
    assert "Mend it there; tulip --debug … shows the whole traceback" in said
    with pytest.raises((KeyError, ModuleNotFoundError, TypeError)):
        tulip("--debug", *commands[command])


def test_in_python_an_error_stays_what_it_is(
    tulip: Tulip, commands: dict[str, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = tulip_ood.load(commands["score"][1], load_model("tulip_tiny:failing").module)
    monkeypatch.setenv("FAILS", "key")
    with pytest.raises(KeyError, match=r"^'mask'$"):
        detector.score(torch.zeros(40, 3, 8, 8))


def test_a_mistake_of_ours_keeps_its_traceback(
    tulip: Tulip, commands: dict[str, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(tulip_ood.detectors.MSP, "_score", mistake)
    with pytest.raises(KeyError, match="ours"):
        tulip(*commands["calibrate"])


def test_a_network_that_fails_while_a_detector_is_loaded(
    tulip: Tulip,
    commands: dict[str, list[object]],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files are not mixed up with the detector's."""
    import tulip_tiny

    def forward(self: object, x: object) -> object:
        return open("/no/such/weights")

    monkeypatch.setattr(tulip_tiny.Failing, "forward", forward)
    result = tulip(*commands["score"])
    assert result.exit_code == 1
    assert "No such file or directory: '/no/such/weights', in " in result.stderr
    assert "could not be tried, as the network's own code failed with File" in result.stderr
    assert os.path.basename(__file__) in result.stderr
    assert "there is no file" not in result.stderr
    assert "damaged" not in result.stderr


class Calling(nn.Module):
    """Hands its input to a function of somebody else's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def place_of(run: Callable[[], object]) -> str:
    try:
        run()
    except Exception as error:
        return place_in_network(error)
    raise AssertionError("nothing went wrong")


@pytest.mark.parametrize(
    "run",
    [
        lambda: nn.Linear(3, 2).load_state_dict(nn.Linear(4, 2).state_dict()),
        lambda: nn.Linear(3, 2).not_there,
        lambda: nn.Linear(3, 2).to("nowhere"),
        lambda: nn.Linear(3, 2).register_buffer("bias", torch.zeros(2)),
    ],
)
def test_what_is_done_to_a_network_is_not_its_own_code(run: Callable[[], object]) -> None:
    """PyTorch has it in the file where modules are called."""
    assert place_of(run) == ""


def test_python_and_installed_libraries_are_not_the_users(tmp_path: Path) -> None:
    """Wherever they are: a library that was installed for one user stands in no prefix."""
    folder = tmp_path / ".local/lib/python3.11/site-packages"
    library = types.ModuleType("somebodys")
    code = compile("def use(x):\n    return {}[x]", str(folder / "somebodys.py"), "exec")
    exec(code, library.__dict__)
    for function in (
        lambda x: library.use(x),
        lambda x: importlib.import_module("tulip_not_installed"),
    ):
        place = place_of(lambda function=function: Calling(function)(0))  # type: ignore[misc]
        assert "<lambda>" in place
        assert os.path.basename(__file__) in place
