"""What the distance detectors' tests run on: features and logits of small trained networks."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.fitting import splits, usable
from tulip_ood.detectors.knn import KNN
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.mds_plus import MDSPlus
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.rmds import RMDS
from tulip_ood.detectors.rmds_plus import RMDSPlus
from tulip_ood.detectors.vim import ViM
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import collect_rows

DETECTORS = (MDS, MDSPlus, RMDS, RMDSPlus, ViM, KNN, FDBD, NCI, NNGuide)
TRACKS = ("val", "train")
quiet = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


@dataclass(frozen=True)
class Records:
    """A network and the passes of its data."""

    model: nn.Module
    val: Passes
    train: Passes
    test: Passes
    ood: Passes


def record(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Passes:
    detector = MSP(model)
    detector.engine.take_model()
    detector.network.probe(x)
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    rows = collect_rows([(x, labels)], seed=0, memory=1 << 30)
    made = detector.engine.passes_of(rows, detector._needs(), seed=0)
    return made if y is not None else replace(made, labels=None)


def records_of(problem: Any) -> Records:
    """Half of the test inputs stand in for training data: the networks are too sure of theirs."""
    x, y = problem.test
    half = len(x) // 2
    return Records(
        problem.model,
        record(problem.model, *problem.val),
        record(problem.model, x[:half], y[:half]),
        record(problem.model, x[half:], y[half:]),
        record(problem.model, problem.ood),
    )


def fitted(kind: type[Detector], data: Records, track: str, **settings: Any) -> Any:
    train = data.train if track == "train" else None
    return kind(data.model, **settings).fit(data.val, train=train)


def learned_from(data: Records, track: str) -> Passes:
    """The inputs that a detector with seed 0 learns from."""
    if track == "train":
        return data.train
    passes, _ = usable(data.val, MSP(data.model).task, 0)
    return passes.take(splits(passes)[0][0])
