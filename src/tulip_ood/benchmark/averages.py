"""Means over noise seeds and networks, of methods that ran on all networks alike.

A method that ran on two networks of three cannot stand beside one that ran on all: it is left out
and named. Rows of one number are the same image in every run, and that is checked here.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tulip_ood.benchmark.runs import Benchmark, Run
from tulip_ood.errors import InputError

__all__ = [
    "Average",
    "Field",
    "average",
    "field_of",
    "is_ensemble",
    "name_of",
    "of_networks",
]

_ID = re.compile(r"^(?P<name>.+)-[0-9a-f]{10}$")  # what `cells.network_id` gives


@dataclass(frozen=True)
class Average:
    """A number over networks.

    Attributes:
        mean: Over networks, of the mean over noise seeds.
        spread: The population standard deviation over networks; NaN for a single one, and for an
            ensemble, which is nearly the same on every network.

    Example:
        >>> Average(0.9, 0.01).mean
        0.9
    """

    mean: float
    spread: float


@dataclass(frozen=True)
class Field:
    """The methods of a track that can be compared.

    Attributes:
        networks: Every network of the track, in the order of the runs.
        methods: The runs of each method, by network; noise seeds in rising order.
        partial: Methods that did not run on every network, and on how many they did.

    Example:
        >>> Field(("s0",), {}, {"odin": "on 1 of 3 networks"}).partial["odin"]
        'on 1 of 3 networks'
    """

    networks: tuple[str, ...]
    methods: Mapping[str, Mapping[str, tuple[Run, ...]]]
    partial: Mapping[str, str]

    @property
    def noise_seeds(self) -> int:
        """The most noise seeds that a method has on a network."""
        return max((len(r) for each in self.methods.values() for r in each.values()), default=0)


def is_ensemble(method: str) -> bool:
    """Whether a method asks all networks at once: each network's row is nearly the same.

    Example:
        >>> is_ensemble("ensemble"), is_ensemble("knn&ensemble[k=5]"), is_ensemble("knn")
        (True, True, False)
    """
    return "ensemble" in method.partition("[")[0].split("&")


def name_of(network: str) -> str:
    """A network's name for people: its id without the hash.

    Example:
        >>> name_of("resnet18_s0-0123456789"), name_of("s0")
        ('resnet18_s0', 's0')
    """
    found = _ID.match(network)
    return network if found is None else found["name"]


def of_networks(benchmark: Benchmark, chosen: Iterable[str]) -> Benchmark:
    """The runs of some networks alone.

    Args:
        benchmark: All runs.
        chosen: Ids, or names (then all networks of that name are taken).

    Raises:
        InputError: If a name is not that of a network here.

    Example:
        >>> of_networks(Benchmark("cifar10", (), {}), ["s0"])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no network 's0' in this benchmark; there are none
    """
    wanted = set(chosen)
    there = dict.fromkeys(run.network for run in benchmark.runs)
    for each in sorted(wanted - {*there, *map(name_of, there)}):
        raise InputError(
            f"there is no network {each!r} in this benchmark; there are "
            f"{', '.join(there) if there else 'none'}"
        )
    kept = [run for run in benchmark.runs if {run.network, name_of(run.network)} & wanted]
    return replace(benchmark, runs=tuple(kept))


def field_of(benchmark: Benchmark, track: str) -> Field:
    """The methods that ran on every network of a track.

    Args:
        benchmark: All runs.
        track: "val" or "train".

    Raises:
        InputError: If the track has no runs, or runs that were not made on the same images.

    Example:
        >>> field_of(Benchmark("cifar10", (), {}), "val")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: this benchmark has no runs on the track 'val'; it has none
    """
    runs = benchmark.of(track)
    if not runs:
        there = sorted({run.track for run in benchmark.runs})
        raise InputError(
            f"this benchmark has no runs on the track {track!r}; it has "
            f"{' and '.join(there) if there else 'none'}"
        )
    networks = tuple(dict.fromkeys(run.network for run in runs))
    found: dict[str, dict[str, tuple[Run, ...]]] = {}
    for run in sorted(runs, key=lambda run: run.noise_seed):
        of_method = found.setdefault(run.method, {})
        of_method[run.network] = (*of_method.get(run.network, ()), run)
    _check(benchmark, runs, found)
    order = dict.fromkeys(run.method for run in runs)
    partial = {
        name: f"on {len(found[name])} of {len(networks)} networks"
        for name in order
        if len(found[name]) < len(networks)
    }
    return Field(networks, {n: found[n] for n in order if n not in partial}, partial)


def _check(
    benchmark: Benchmark, runs: list[Run], found: Mapping[str, Mapping[str, tuple[Run, ...]]]
) -> None:
    sizes = _sizes(runs[0])
    unknown = sorted({*sizes} - {"", *benchmark.sets})
    if unknown:
        raise InputError(
            f"{', '.join(unknown)} was scored but is not among the benchmark's sets "
            f"({', '.join(benchmark.sets)}): name every set there, with its group"
        )
    unscored = sorted({n for n, each in benchmark.sets.items() if each.group != "id"} - {*sizes})
    if unscored:
        raise InputError(
            f"{', '.join(unscored)} is among the benchmark's sets, but {runs[0].method} on "
            f"{runs[0].network} has no scores of it: list only sets that were scored"
        )
    for run in runs:
        if _sizes(run) != sizes:
            raise InputError(
                f"{run.method} on {run.network} has scores of other images than {runs[0].method} "
                f"on {runs[0].network} ({_sizes(run)} and {sizes}): runs on different sets "
                f"belong to different benchmarks"
            )
    for name, by_network in found.items():
        for network, own in by_network.items():
            seeds = [run.noise_seed for run in own]
            if len(set(seeds)) < len(seeds):
                raise InputError(
                    f"{name} is there twice on {network} with noise seed "
                    f"{next(s for s in seeds if seeds.count(s) > 1)}: keep one of the two runs"
                )


def _sizes(run: Run) -> dict[str, int]:
    """How many scores there are of each set; "" is the ID test set."""
    own = {name: len(part.scores) for name, part in run.result.sets.items()}
    shifted = {name: len(part.scores) for name, part in run.shifted.items()}
    return {"": len(run.result.id_scores)} | own | shifted


def average(by_network: Mapping[str, tuple[Run, ...]], value: Callable[[Run], float]) -> Average:
    """The mean of a number over noise seeds and then networks, and its spread over networks.

    Args:
        by_network: The runs of one method.
        value: The number of one run.

    Example:
        >>> average({}, lambda run: run.result.aurc).mean
        nan
    """
    each = [sum(map(value, runs)) / len(runs) for runs in by_network.values()]
    if not each:
        return Average(math.nan, math.nan)
    mean = sum(each) / len(each)
    if len(each) == 1 or any(is_ensemble(r.method) for runs in by_network.values() for r in runs):
        return Average(mean, math.nan)
    return Average(mean, math.sqrt(sum((v - mean) ** 2 for v in each) / len(each)))
