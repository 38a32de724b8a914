"""Finished benchmarks: their long tables, a number for each method and network, paired differences.

Networks are the unit: methods are compared on the same network, and an interval says how a further
network trained in the same way would differ (Student's t of the paired differences).
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tulip_ood.benchmark.averages import name_of
from tulip_ood.benchmark.tidy_file import read_parquet
from tulip_ood.errors import DataError, InputError
from tulip_ood.figures.labels import STAND_IN, id_name, of_sets

__all__ = ["Finished", "Gap", "paired", "read_results", "short_names"]

RESULTS = "results.parquet"
# Two-sided 95 % of Student's t, by degrees of freedom; beyond them the normal's is near enough.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Gap:
    """What one method has more than another, over networks.

    Attributes:
        values: On each network.
        mean: Of these.
        low: Of the 95 % interval; NaN for one network.
        high: Likewise.

    Example:
        >>> Gap((0.1,), 0.1, float("nan"), float("nan")).clear
        False
    """

    values: tuple[float, ...]
    mean: float
    low: float
    high: float

    @staticmethod
    def of(differences: Iterable[float]) -> "Gap":
        """From the differences on each network."""
        values = tuple(differences)
        middle = mean(values)
        if len(values) < 2:
            return Gap(values, middle, math.nan, math.nan)
        t = _T95[min(len(values) - 1, len(_T95)) - 1]
        half = t * stdev(values) / math.sqrt(len(values))
        return Gap(values, middle, middle - half, middle + half)

    @property
    def clear(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


def paired(one: Mapping[str, float], other: Mapping[str, float]) -> Gap:
    """`one` minus `other` on the networks that both have.

    Example:
        >>> gap = paired({"s0": 0.9, "s1": 0.8}, {"s0": 0.7, "s1": 0.6, "s2": 0.5})
        >>> round(gap.mean, 6), gap.clear
        (0.2, True)
    """
    shared = [name for name in one if name in other]
    if not shared:
        raise InputError("the two methods did not run on a common network")
    return Gap.of(one[name] - other[name] for name in shared)


@dataclass(frozen=True)
class Finished:
    """All rows of some benchmarks.

    Attributes:
        rows: As `benchmark.tidy` makes them.

    Example:
        >>> Finished(()).id_sets
        ()
    """

    rows: tuple[dict[str, Any], ...]

    @property
    def id_sets(self) -> tuple[str, ...]:
        """In the order of the files."""
        return tuple(dict.fromkeys(row["id_set"] for row in self.rows))

    def of(self, id_set: str) -> "Finished":
        """Those of one ID set."""
        return Finished(tuple(row for row in self.rows if row["id_set"] == id_set))

    def numbers(self, metric: str, group: str, track: str = "val") -> dict[str, dict[str, float]]:
        """By method and network; the mean over noise seeds. `group` is near, far or id."""
        ood_set = "" if group == "id" else None
        found: dict[str, dict[str, list[float]]] = {}
        for row in self.rows:
            where = (row["metric"], row["group"], row["track"], row["ood_set"])
            if where == (metric, group, track, ood_set) and row["value"] is not None:
                found.setdefault(row["method"], {}).setdefault(row["network"], []).append(
                    row["value"]
                )
        return {m: {n: mean(v) for n, v in by.items()} for m, by in found.items()}

    def parameters(self, method: str) -> dict[str, dict[str, Any]]:
        """What a method fixed or chose, by network (of the first noise seed)."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            if row["method"] == method and row["track"] == "val":
                found.setdefault(row["network"], json.loads(row["parameters"]))
        return found

    def sets(self) -> list[tuple[str, str, str | None]]:
        """(name, group, stand-in) of every OOD set."""
        found = {
            (row["ood_set"], row["group"], row["stand_in"]): None
            for row in self.rows
            if row["ood_set"] and row["group"] in ("near", "far")
        }
        return sorted(found, key=lambda each: (each[1] != "near", each[0]))

    def small_print(self, more: str = "") -> str:
        """Which sets these results are from, what stands in for another, how many images."""
        told = [f"{id_name(name)}: {of_sets(self.of(name).sets())}" for name in self.id_sets]
        limit = f" At most {self.limit:,} images of each set." if self.limit else ""
        marked = any(stand_in is not None for *_, stand_in in self.sets())
        end = f" {STAND_IN} stands in for the protocol's own set{more}." if marked else ""
        return ". ".join(told) + "." + limit + end

    @property
    def limit(self) -> int | None:
        """Images of each set at most."""
        return max((row["limit"] for row in self.rows if row["limit"]), default=None)


def read_results(places: Iterable[str | os.PathLike[str]]) -> Finished:
    """The long tables of some benchmarks: `results.parquet` files, or folders that hold one.

    Example:
        >>> read_results(["/no/such/folder"])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: /no/such/folder holds no results.parquet: give what tulip \
bench wrote to
    """
    rows: list[dict[str, Any]] = []
    for place in places:
        path = Path(place)
        file = path / RESULTS if path.is_dir() else path
        if not file.is_file():
            raise DataError(f"{path} holds no {RESULTS}: give what tulip bench wrote to")
        rows += read_parquet(file)
    return Finished(tuple(rows))


def short_names(networks: Sequence[str]) -> dict[str, str]:
    """Networks without the hash that tells equal names apart, where that is enough.

    Example:
        >>> short_names(["s0-0123456789", "s1-0123456789"])
        {'s0-0123456789': 's0', 's1-0123456789': 's1'}
    """
    plain = {network: name_of(network) for network in networks}
    unique = len(set(plain.values())) == len(plain)
    return plain if unique else {network: network for network in networks}
