"""What runs on other machines, run on this one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tulip_ood
from tulip_ood.cluster.job import prepare
from tulip_ood.cluster.worker import Scorer, order_for
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))


def test_a_share_that_vanishes_ends_the_job(tmp_path: Path) -> None:
    """As on one machine: see tests/cli/test_score_outages.py."""
    share, file = tmp_path / "share", tmp_path / "d.safetensors"
    share.mkdir()
    for i in range(4):
        Image.fromarray(np.full((4, 4, 3), 40 * i, dtype=np.uint8)).save(share / f"{i}.png")
    x = torch.randn(60, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    detector = tulip_ood.detectors.MSP(network()).fit([(x, torch.arange(60) % 3)])
    prepared = Preprocess(4, 4, (0.5,) * 3, (0.5,) * 3)
    detector.provenance["preprocess"] = prepared.to_json()
    detector.save(file)
    job = prepare(file, str(share), tmp_path / "x.parquet", model=network)
    worker = Scorer(order_for(job))
    worker.start()
    (share / "3.png").unlink()  # one file is a row
    assert worker.score(0, job.source.shard(0, 4))
    share.rename(tmp_path / "away")
    with pytest.raises(DataError, match=f"the folder {share} was there .* what is finished is"):
        worker.score(0, job.source.shard(0, 4))
