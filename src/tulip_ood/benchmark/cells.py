"""A cell: one method, on one track, with one seed, on one network. Fitted once, scored once."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tulip_ood.benchmark.contest import YARDSTICK
from tulip_ood.benchmark.entries import Entry
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.network.network import Network
from tulip_ood.version import __version__

__all__ = ["TRACKS", "BenchNetwork", "Cell", "network_id", "parameters_of", "plan"]

TRACKS = ("val", "train")


@dataclass(frozen=True)
class BenchNetwork:
    """A network to be benchmarked.

    Attributes:
        name: A short name for people.
        module: In evaluation mode, on the device where it shall run.
        preprocess: How images are prepared for it.
        training_seed: The seed that it was trained with, where it is known.

    Example:
        >>> from tulip_ood.data.protocol import protocol_of
        >>> BenchNetwork("linear", nn.Linear(2, 2), protocol_of("cifar10").preprocess).name
        'linear'
    """

    name: str
    module: nn.Module
    preprocess: Preprocess
    training_seed: int | None = None


@dataclass(frozen=True)
class Cell:
    """One method, on one track, with one seed, on one network.

    Attributes:
        key: A hash of all that decides its scores, beside the data.
        entry: The method with its settings.
        track: "val" or "train".
        noise_seed: The detector's seed.
        tune: Which inputs its parameters are chosen on.

    Example:
        >>> Cell("k", Entry.parse("knn"), "train", 0, "ood").track
        'train'
    """

    key: str
    entry: Entry
    track: str
    noise_seed: int
    tune: str


def network_id(network: BenchNetwork, shared: Network) -> str:
    """A name that two networks never share: name, and a hash of weights and preparation.

    Example:
        >>> from tulip_ood.data.protocol import protocol_of
        >>> from tulip_ood.numerics.tasks import make_task
        >>> module = nn.Linear(2, 2)
        >>> mine = BenchNetwork("linear", module, protocol_of("cifar10").preprocess)
        >>> network_id(mine, Network(module, make_task("classification")))[:7]
        'linear-'
    """
    decides = [
        shared.fingerprint(),
        hashlib.sha256(repr(shared.module).encode()).hexdigest(),
        network.preprocess.fingerprint,
        shared.precision,
    ]
    clean = "".join(c if c.isalnum() or c in "._-" else "_" for c in network.name)
    return f"{clean}-{_hash(decides)[:10]}"


def plan(
    entries: Sequence[Entry],
    tracks: Sequence[str],
    noise_seed: int,
    *,
    network: str,
    others: Sequence[str],
    tune: str,
    digests: Mapping[str, str] | None = None,
) -> list[Cell]:
    """The cells of one network with one seed: entropy always, training data where it is learned.

    Args:
        entries: What is asked for.
        tracks: "val", "train" or both.
        noise_seed: The detectors' seed.
        network: The network's id.
        others: Those of the other networks, for ensembles.
        tune: Which inputs the rivals' parameters are chosen on.
        digests: Of the parts that are fitted on, where they are there: "train", "ood_val".

    Example:
        >>> made = plan([Entry.parse("knn")], TRACKS, 0, network="n", others=(), tune="ood")
        >>> [(str(cell.entry), cell.track) for cell in made]
        [('ent', 'val'), ('knn', 'val'), ('knn', 'train')]
    """
    whole = {str(entry): entry for entry in [Entry.parse(YARDSTICK), *entries]}
    cells = []
    for track in TRACKS:
        for label, entry in whole.items():
            learns = entry.detector.learns_from_data
            if track == "train" and not (learns and "train" in tracks):
                continue
            if track == "val" and "val" not in tracks and label != YARDSTICK:
                continue
            chosen = entry.tuned_on(tune) if entry.searches else "none"
            uses_others = "ensemble" in entry.method.split("&")
            there = digests or {}
            decides = [
                __version__,
                network,
                label,
                track,
                noise_seed,
                chosen,
                sorted(others) if uses_others else None,
                there.get("train") if track == "train" else None,
                there.get("ood_val") if chosen == "ood" else None,
            ]
            cells.append(Cell(_hash(decides)[:24], entry, track, noise_seed, chosen))
    return cells


def parameters_of(detector: Detector) -> dict[str, Any]:
    """What was fixed or chosen, for a table.

    Example:
        >>> import torch, tulip_ood
        >>> parameters_of(tulip_ood.detectors.KNN(torch.nn.Linear(4, 3), k=5))
        {'k': 5}
    """
    if isinstance(detector, Tulip) and detector.threshold is not None:
        state = detector.fitted
        found: Mapping[str, Any] = {
            "epsilon": state.setting.epsilon,
            "lam": state.lam,
            "lam_over_balanced": state.lam / state.balanced_lam if state.balanced_lam else None,
            "j": state.j_score,
            "shaping": state.setting.shaping,
            "recipe": detector.recipe,
        }
        return dict(found)
    return dict(detector.parameters)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
