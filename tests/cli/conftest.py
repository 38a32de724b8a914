"""A project as a user has it: a network of their own in a module, and folders of small images."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from tulip_ood.cli.app import app

COLOURS = ("blue", "green", "red")  # class folders, in the order of the network's outputs
PREPARED = ["--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
MODULE = '''
import glob, hashlib, os, time
import torch
from torch import nn


class Net(nn.Module):
    """Which colour prevails? With a diary of all that it was shown, if the test asks for one."""

    def __init__(self, outputs=3):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, outputs)

    def forward(self, x):
        if "DIARY" in os.environ:
            if len(glob.glob(os.environ["WAIT_AT"])) >= 3:
                time.sleep(60)
            with open(os.environ["DIARY"], "a") as diary:
                for row in x:
                    diary.write(hashlib.sha256(row.float().numpy().tobytes()).hexdigest() + chr(10))
        return self.head(torch.relu(self.conv(x)).mean(dim=(2, 3)))


def build(seed=0, outputs=3):
    torch.manual_seed(seed)
    net = Net(outputs)
    with torch.no_grad():
        for channel in range(3):  # outputs are blue, green, red; channels red, green, blue
            net.conv.weight[channel] *= 0.3
            net.conv.weight[channel, 2 - channel, 1, 1] += 1.0
        net.head.weight[:3, :3] += 2.0 * torch.eye(3)
    return net


def make():
    with torch.random.fork_rng():
        return build()


def changed():
    with torch.random.fork_rng():
        net = build()
        with torch.no_grad():
            net.head.weight += 0.3 * torch.randn(net.head.weight.shape)
        return net


def single():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1))


def dense():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Conv2d(3, 3, 1)


def wider():
    return nn.Sequential(make(), nn.Linear(3, 3))


class Failing(Net):
    """Whose own code fails in the way that a test asks for; not on sixteen inputs or fewer."""

    def forward(self, x):
        fails = os.environ.get("FAILS") if len(x) > 16 else None
        if fails == "key":
            return {}["mask"]
        if fails == "module":
            import tulip_not_installed
        if fails == "library":
            return self.head(nn.functional.linear(x, None))
        return super().forward(x)


def failing():
    net = Failing()
    net.load_state_dict(make().state_dict())
    return net


def nothing():
    return 42


def broken():
    raise ValueError("no weights here")


ready = nn.Identity()
'''


def colour_image(rng: np.random.Generator, label: int | None, side: int = 8) -> np.ndarray:
    """A noisy image in which blue (0), green (1) or red (2) prevails, or none."""
    pixels = rng.normal(110, 60, (side, side, 3))
    if label is not None:
        pixels[..., 2 - label] += 18
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tulip_tiny.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    for name, each in (("val", 50), ("test", 20)):
        for label, colour in enumerate(COLOURS):
            place = folder / name / colour
            place.mkdir(parents=True)
            for i in range(each):
                Image.fromarray(colour_image(rng, label)).save(place / f"{i:03d}.png")
    (folder / "ood").mkdir()
    for i in range(30):
        Image.fromarray(colour_image(rng, None, 11)).save(folder / "ood" / f"{i:03d}.png")
    x = np.stack([colour_image(rng, i % 3) for i in range(60)])
    y = np.arange(60) % 3
    np.savez(folder / "images.npz", x=x, y=y)
    np.savez(
        folder / "ready.npz", x=((x / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).astype("f4"), y=y
    )
    (folder / "labels-missing.txt").write_text("val/red/000.png 2\nval/red/001.png\n")
    return folder


Tulip = Callable[..., Result]


@pytest.fixture
def tulip(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tulip]:
    """Run a command in the project's folder."""
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delenv("DIARY", raising=False)
    threads = torch.get_num_threads()

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(part) for part in arguments])
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        if unexpected:
            raise result.exception
        return result

    yield run
    torch.set_num_threads(threads)
    sys.modules.pop("tulip_tiny", None)


@pytest.fixture(scope="session")
def detectors(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted detectors that tests may read but not change."""
    folder = tmp_path_factory.mktemp("detectors")
    before = os.getcwd()
    os.chdir(project)
    sys.path.insert(0, str(project))
    try:
        for method, more in (("msp", []), ("tulip", ["--recipe", "balanced", "--samples", "4"])):
            place = ["--data", "val", "--out", str(folder / f"{method}.safetensors")]
            arguments = ["calibrate", "tulip_tiny:make", *place, "--method", method]
            result = CliRunner().invoke(app, [*arguments, *more, *PREPARED])
            assert result.exit_code == 0, result.output
    finally:
        sys.path.remove(str(project))
        os.chdir(before)
        sys.modules.pop("tulip_tiny", None)
    return folder
