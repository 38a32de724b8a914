"""What a benchmark holds: one run is one fitted method on one network, with all of its scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tulip_ood.benchmark.results import MethodResult

__all__ = ["Benchmark", "BenchmarkSet", "Run", "ShiftedResult"]


@dataclass(frozen=True)
class BenchmarkSet:
    """One of the sets that a benchmark was run on.

    Attributes:
        name: As the protocol calls it.
        group: "id", "near", "far" or "shifted" (ID classes, other conditions).
        n: Images that were scored.
        protocol_n: As many as the protocol has.
        stand_in: What it is instead of the protocol's own set; None if it is that.

    Example:
        >>> BenchmarkSet("svhn", "far", 10_000, 26_032, "10,000 of 26,032").whole
        False
    """

    name: str
    group: str
    n: int
    protocol_n: int | None = None
    stand_in: str | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the protocol's own set, all of it."""
        return self.stand_in is None and self.n == self.protocol_n


@dataclass(frozen=True)
class ShiftedResult:
    """One method on ID inputs under other conditions.

    Attributes:
        scores: Of every input.
        wrong: 1 where the network's answer is wrong.

    Example:
        >>> import torch
        >>> ShiftedResult(torch.ones(2), torch.zeros(2)).wrong.sum().item()
        0.0
    """

    scores: Tensor
    wrong: Tensor


@dataclass(frozen=True)
class Run:
    """One fitted method on one network.

    Attributes:
        id_set: The protocol's ID set.
        network: A name that is the network's own: two networks never share one.
        training_seed: The seed that the network was trained with, where it is known.
        noise_seed: The seed of the detector.
        method: As it was asked for, settings included: `tulip[recipe=paper]`.
        track: "val" or "train": which data it was fitted on. Never mixed in a table.
        n_val: Validation inputs.
        n_train: Training inputs; 0 on the track "val".
        parameters: What was fixed or chosen.
        result: Scores on ID test inputs and on every OOD set.
        shifted: Scores on ID inputs under other conditions, by set.
        tune: What its parameters were chosen on: "ood", "pseudo" or "none".
        architecture: The class of the network.
        findings: What looked odd while it was fitted, in sentences.

    Example:
        >>> Run.__dataclass_fields__["track"].type
        <class 'str'>
    """

    id_set: str
    network: str
    training_seed: int | None
    noise_seed: int
    method: str
    track: str
    n_val: int
    n_train: int
    parameters: Mapping[str, Any]
    result: MethodResult
    shifted: Mapping[str, ShiftedResult] = field(default_factory=dict)
    tune: str = "none"
    architecture: str = ""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """All runs on one ID set; rows of the same number are the same image in every run.

    Attributes:
        id_set: The protocol's ID set.
        runs: In the order of networks, tracks and methods.
        sets: Every set that was scored, ID first.
        limit: The seeded subset that was drawn of each set, if one was.
        skipped: Methods that could not be run, with the reason.
        environment: Versions and devices.
        fitted_on: The sets that were fitted on, by role: "val", "train", "ood_val".

    Example:
        >>> Benchmark("cifar10", (), {}).limit is None
        True
    """

    id_set: str
    runs: tuple[Run, ...]
    sets: Mapping[str, BenchmarkSet]
    limit: int | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    fitted_on: Mapping[str, BenchmarkSet] = field(default_factory=dict)

    def in_group(self, group: str) -> list[str]:
        """The names of the sets of a group."""
        return [name for name, each in self.sets.items() if each.group == group]

    def of(self, track: str) -> list[Run]:
        """The runs of a track."""
        return [run for run in self.runs if run.track == track]
