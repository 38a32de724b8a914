"""Is one method better than another, over images, networks and noise?

In every resample the same images are drawn for all methods and networks (ID images once for all OOD
sets, each OOD set for itself), the same networks, with replacement, and for each network drawn its
noise seeds. What is left is chance that methods do not share. With few networks an interval over
them is a rough one: the bootstrap of n sees (n − 1)/n of their variance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tulip_ood.benchmark.averages import Average, Field, average, field_of, is_ensemble
from tulip_ood.benchmark.bootstrap import Interval
from tulip_ood.benchmark.contest import Progress
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, Run
from tulip_ood.benchmark.weighted import OF_SETS, Draws, reweigh
from tulip_ood.errors import InputError
from tulip_ood.numerics.random import uniform

__all__ = ["Best", "Pooled", "pool"]

_BLOCK_BYTES = 8 << 20
_Key = tuple[str, str]  # group and metric


class Best(NamedTuple):
    """The best method, if it is clear which.

    Attributes:
        name: The method whose difference to every other excludes 0; None if there is none.
        tied: Otherwise the best on these images, and those not told apart from it.

    Example:
        >>> Best(None, ("tulip", "knn")).tied
        ('tulip', 'knn')
    """

    name: str | None
    tied: tuple[str, ...]


@dataclass(frozen=True)
class Pooled:
    """All methods of a track over all of its networks.

    `group` is "near" or "far" with the metrics "auroc", "id_flagged_at_95_ood" (OpenOOD's FPR@95)
    and "ood_missed_at_95_id"; "id" with "aurc".

    Attributes:
        track: "val" or "train".
        networks: Over which networks.
        noise_seeds: The most noise seeds that a method has on a network.
        partial: Methods left out because they did not run on every network.
        averages: By method, then (group, metric).
        drawn: The same mean on each resample, [B].

    Example:
        >>> Pooled("val", ("s0",), 1, {}, {}, {}).chance
        'test images; one network and one noise seed: how others would differ is not in it'
    """

    track: str
    networks: tuple[str, ...]
    noise_seeds: int
    partial: Mapping[str, str]
    averages: Mapping[str, Mapping[_Key, Average]]
    drawn: Mapping[str, Mapping[_Key, Tensor]]

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that ran on every network, in the order of the runs."""
        return tuple(self.averages)

    @property
    def chance(self) -> str:
        """What was resampled, in words."""
        counts = {"network": len(self.networks), "noise seed": self.noise_seeds}
        drawn = ["test images", *(f"{n} {name}s" for name, n in counts.items() if n > 1)]
        single = [name for name, n in counts.items() if n == 1]
        found = drawn[0] if len(drawn) == 1 else f"{', '.join(drawn[:-1])} and {drawn[-1]}"
        if not single:
            return found
        return f"{found}; one {' and one '.join(single)}: how others would differ is not in it"

    def mean(self, method: str, group: str, metric: str) -> float:
        """Over sets of the group, noise seeds and networks."""
        return self._average(method, group, metric).mean

    def spread(self, method: str, group: str, metric: str) -> float:
        """The population standard deviation over networks; NaN for one, and for an ensemble."""
        return self._average(method, group, metric).spread

    def difference(self, a: str, b: str, group: str, metric: str) -> Interval:
        """What `a` has more than `b`, with its 95 % interval."""
        value = self.mean(a, group, metric) - self.mean(b, group, metric)
        gap = self.drawn[a][group, metric] - self.drawn[b][group, metric]
        low, high = torch.quantile(gap, torch.tensor([0.025, 0.975], dtype=gap.dtype)).tolist()
        return Interval(value, low, high)

    @property
    def judged(self) -> tuple[str, ...]:
        """Those that may be called the best.

        Over several networks no ensemble: what it says is nearly the same on each of them, so its
        interval over networks is not one.
        """
        if len(self.networks) == 1:
            return self.methods
        return tuple(name for name in self.methods if not is_ensemble(name))

    def best(self, group: str, metric: str) -> str:
        """The best on these images of those that are judged; the first of equal ones."""
        sign = 1.0 if metric == "auroc" else -1.0
        judged = self.judged or self.methods
        return max(judged, key=lambda name: sign * self.mean(name, group, metric))

    def clearly_best(self, group: str, metric: str) -> Best:
        """The best of those that are judged, if its difference to each other excludes 0."""
        if not self.judged:
            return Best(None, ())
        best = self.best(group, metric)
        others = [name for name in self.judged if name != best]
        tied = [n for n in others if not self.difference(best, n, group, metric).clear]
        if tied or not others:
            return Best(None, (best, *tied))
        return Best(best, ())

    def has(self, group: str, metric: str) -> bool:
        """Whether every method has that number."""
        return all((group, metric) in each for each in self.averages.values())

    def _average(self, method: str, group: str, metric: str) -> Average:
        if method not in self.averages:
            why = self.partial.get(method, "not run")
            raise InputError(
                f"{method!r} is not pooled on the track {self.track!r} ({why}); there are "
                f"{', '.join(self.methods)}"
            )
        found = self.averages[method]
        if (group, metric) not in found:
            there = ", ".join(" ".join(key) for key in found)
            raise InputError(f"there is no {metric!r} of {group!r}; there are {there}")
        return found[group, metric]


def pool(
    benchmark: Benchmark,
    track: str,
    *,
    resamples: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> Pooled:
    """Bootstrap the methods of a track together.

    Args:
        benchmark: All runs.
        track: "val" or "train".
        resamples: B.
        seed: Decides the resamples.
        progress: Called with (what, done, of how many).

    Example:
        >>> pool(Benchmark("cifar10", (), {}), "val")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: this benchmark has no runs on the track 'val'; it has none
    """
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    field = field_of(benchmark, track)
    if not field.methods:
        raise InputError(
            f"no method of the track {track!r} ran on all of {', '.join(field.networks)}: nothing "
            f"can be pooled"
        )
    groups = {g: benchmark.in_group(g) for g in GROUPS if benchmark.in_group(g)}
    redrawn = _redraw(field, groups, resamples, seed, progress or (lambda *_: None))
    choose = _Choice(len(field.networks), field.noise_seeds, resamples, seed)
    averages, drawn = {}, {}
    for name, by_network in field.methods.items():
        keys = redrawn[name][0][0].keys()
        averages[name] = {key: average(by_network, _number(groups, key)) for key in keys}
        drawn[name] = {
            key: choose.mean([torch.stack([run[key] for run in own]) for own in redrawn[name]])
            for key in keys
        }
    return Pooled(track, field.networks, field.noise_seeds, field.partial, averages, drawn)


def _number(groups: Mapping[str, list[str]], key: _Key) -> Callable[[Run], float]:
    """A number of one run, over all sets of a group."""
    group, metric = key
    if metric == "aurc":
        return lambda run: run.result.aurc
    names = groups[group]
    return lambda run: sum(getattr(run.result.sets[n], metric) for n in names) / len(names)


class _Choice:
    """Which networks and noise seeds each resample has: the same for every method."""

    def __init__(self, networks: int, noise_seeds: int, resamples: int, seed: int) -> None:
        self._networks = networks
        places = uniform((resamples, networks), seed=seed, name="bootstrap/networks")
        self._drawn = _whole(places, networks)
        shape = (resamples, networks, noise_seeds)
        self._noise = uniform(shape, seed=seed, name="bootstrap/noise")

    def mean(self, values: list[Tensor]) -> Tensor:
        """From one [noise seeds, B] for each network to the mean of what was drawn, [B]."""
        total = torch.zeros(values[0].shape[1], dtype=torch.float64)
        for place in range(self._networks):
            for network, own in enumerate(values):
                seeds = _whole(self._noise[:, place, : len(own)], len(own))
                chosen = own.gather(0, seeds.T).mean(dim=0)
                total += torch.where(self._drawn[:, place] == network, chosen, 0.0)
        return total / self._networks


def _whole(places: Tensor, n: int) -> Tensor:
    return (places * n).long().clamp_max(n - 1)


def _redraw(
    field: Field, groups: Mapping[str, list[str]], resamples: int, seed: int, say: Progress
) -> dict[str, list[list[dict[_Key, Tensor]]]]:
    """Every number of every run under the same draws of images: method, network, noise seed."""
    first = next(iter(next(iter(field.methods.values())).values()))[0].result
    n = len(first.id_scores)
    sizes = {name: len(part.scores) for name, part in first.sets.items()}
    inside = Draws(n, n, seed, "id")
    outside = {name: Draws(size, size, seed, f"ood/{name}") for name, size in sizes.items()}
    step = max(1, _BLOCK_BYTES // (8 * max(n, *sizes.values(), 1)))
    blocks = range(0, resamples, step)
    # Made beforehand: small tensors kept from between large ones would break up the memory.
    keys = _keys(groups, errors_known=not bool(first.wrong.isnan().all()))
    found = {
        name: [
            [{key: torch.empty(resamples, dtype=torch.float64) for key in keys} for _ in runs]
            for runs in by_network.values()
        ]
        for name, by_network in field.methods.items()
    }
    places = [  # every run, with the place of its numbers
        (run, parts)
        for name, by_network in field.methods.items()
        for own, runs in zip(found[name], by_network.values(), strict=True)
        for parts, run in zip(own, runs, strict=True)
    ]
    for i, begin in enumerate(blocks):
        end = min(begin + step, resamples)
        of_id = inside.block(begin, end)
        of_sets = {name: draws.block(begin, end) for name, draws in outside.items()}
        for done, (run, parts) in enumerate(places, i * len(places) + 1):
            values = _of_run(run, groups, of_id, of_sets)
            for key in keys:
                parts[key][begin:end] = values[key]
            say("resampling", done, len(blocks) * len(places))
    return found


def _keys(groups: Mapping[str, list[str]], *, errors_known: bool) -> list[_Key]:
    found = [(group, metric) for group in groups for metric in OF_SETS]
    return [*found, ("id", "aurc")] if errors_known else found


def _of_run(
    run: Run, groups: Mapping[str, list[str]], inside: Tensor, outside: Mapping[str, Tensor]
) -> dict[_Key, Tensor]:
    redrawn = reweigh(run.result, inside, outside)
    found = {
        (group, metric): torch.stack([redrawn.sets[name][metric] for name in names]).mean(dim=0)
        for group, names in groups.items()
        for metric in OF_SETS
    }
    unknown = torch.full((len(inside),), torch.nan, dtype=torch.float64)
    found["id", "aurc"] = unknown if redrawn.aurc is None else redrawn.aurc
    return found
