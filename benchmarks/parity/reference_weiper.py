"""The authors' WeiPer+KLD on the problem: their `weiper_kldiv/utils.py`, from a file."""

import contextlib
import importlib.util
import io
import warnings
from pathlib import Path
from types import ModuleType

import torch
from comparing import Reference
from problem import BATCH, Problem
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.weiper import WeiPer
from tulip_ood.network.features import Head

_MODULE: list[ModuleType] = []
CIFAR10 = {
    "lambda_1": 2.5,
    "lambda_2": 0.1,
    "n_bins": 100,
    "n_repeats": 100,
    "perturbation_distance": 1.8,
    "smoothing": 4,
    "smoothing_perturbed": 15,
}


def load(file: Path) -> None:
    """Import the authors' file."""
    spec = importlib.util.spec_from_file_location("weiper_utils", file)
    if spec is None or spec.loader is None or not file.exists():
        raise FileNotFoundError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses torch.jit
        spec.loader.exec_module(module)
    _MODULE[:] = [module]


def _theirs(p: Problem, heads: Head | None) -> Tensor:
    """As their postprocessor calls it; with the given perturbed layer, or one drawn anew."""
    utils = _MODULE[0]
    known, asked = p.features(p.train[0]), p.features(p.test)
    layer = None
    if heads is not None:
        # In float64, or values at the edges of bins would fall to the other side of them.
        known, asked = known.double(), asked.double()
        layer = nn.Linear(known.shape[1], len(heads.bias))
        layer.weight.data, layer.bias.data = heads.weight, heads.bias
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stderr(io.StringIO()):
        torch.manual_seed(0)
        space, layer = utils.calculate_weiper_space(
            p.net, known, layer, "cpu", CIFAR10["perturbation_distance"], CIFAR10["n_repeats"]
        )
        ranges = (known.min(), known.max()), (space.min(), space.max())
        both = {**CIFAR10, "train_min_max": ranges, "perturbed_fc": layer}
        densities = [
            utils.calculate_WeiPerKLDiv_score(p.net, part, **both)[:2]
            for part in known.split(BATCH)
        ]
        means = tuple(torch.stack(parts).mean(0) for parts in zip(*densities, strict=True))
        parts = [
            utils.calculate_WeiPerKLDiv_score(p.net, part, train_densities=means, **both)
            for part in asked.split(BATCH)
        ]
    return -torch.cat(parts).detach().double()


def with_our_noise(p: Problem, detector: Detector) -> tuple[Tensor, Tensor]:
    """Theirs with the layers that ours perturbed."""
    assert isinstance(detector, WeiPer)
    head = Head(p.net.fc.weight.detach(), p.net.fc.bias.detach())
    (heads,) = detector.perturbed_heads.blocks(head)
    return detector.score(p.test), _theirs(p, heads)


REFERENCES = [
    Reference(
        "weiper",
        lambda p: _theirs(p, None),
        why="other noise: the authors draw torch.randn, ours is counter-based; both are a sample "
        "of the same distribution",
        without=with_our_noise,
    )
]
