"""A small network, good and bad images, a detector's file, and Ray; without Ray nothing is run."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.models.spec import load_model

collect_ignore_glob = [] if find_spec("ray") else ["test_*"]

PREPARED = Preprocess(8, 8, (0.5,) * 3, (0.25,) * 3)
BLACK = 30  # the row whose image brings a process down, if the test says so
MODULE = '''
import os
import torch
from torch import nn


class Net(nn.Module):
    """Dies of a black image, as of too large a one, if there is a file `die-once`."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        if bool((x.flatten(1).amax(dim=1) < -1.99).any()) and os.path.exists("die-once"):
            os.unlink("die-once")
            os._exit(1)
        return self.head(torch.relu(self.conv(x)).mean(dim=(2, 3)))


def make():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def changed():
    net = make()
    with torch.no_grad():
        net.head.weight += 1.0
    return net
'''


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "tulip_cluster_net.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    pixels = rng.integers(1, 255, (80, 9, 11, 3), dtype=np.uint8)
    pixels[BLACK] = 0
    (folder / "images").mkdir()
    for i, one in enumerate(pixels[:60]):
        Image.fromarray(one).save(folder / "images" / f"{i:03d}.png")
    for i in (7, 40, 41):
        (folder / "images" / f"{i:03d}.png").write_bytes(b"no image" * (i % 2))
    np.savez(folder / "more.npz", x=pixels[60:70], y=np.arange(10) % 3)
    encoded = [(folder / "images" / f"{i:03d}.png").read_bytes() for i in range(5)]
    pq.write_table(pa.table({"image": encoded, "label": [0, 1, 2, 0, -1]}), folder / "set.parquet")
    return folder


@pytest.fixture
def project(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user stands in the folder where the network and the images are."""
    monkeypatch.chdir(built)
    yield built
    (built / "die-once").unlink(missing_ok=True)
    sys.modules.pop("tulip_cluster_net", None)


@pytest.fixture
def detector(project: Path) -> str:
    file = project / "detector.safetensors"
    if not file.exists():
        x = torch.randn(200, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        model = load_model("tulip_cluster_net:make").module
        made = tulip_ood.Tulip(model, n_samples=4, j=1.0)
        made.fit([(x, torch.arange(200) % 3)], recipe="balanced")
        made.provenance["preprocess"] = PREPARED.to_json()
        made.save(file)
    return str(file)


@pytest.fixture
def asked(detector: str) -> dict[str, Any]:
    """What every run is asked to do."""
    return {
        "detector": detector,
        "inputs": ["images", "more.npz", "set.parquet"],
        "model": "tulip_cluster_net:make",
        "part_rows": 8,
        "batch_size": 4,
    }


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    import ray as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else other tests would leave it no time
        module.init(
            address="local",  # not one that happens to run here
            num_cpus=3,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100_000_000,
        )
    yield module
    module.shutdown()
