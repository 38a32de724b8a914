"""What a reader of a table must know: the images, the fitting data, what was not run."""

from collections.abc import Iterable

from tulip_ood.benchmark.averages import Field
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet
from tulip_ood.data.protocol import PROTOCOLS

__all__ = ["caption", "differs", "group_title", "listed", "run_notes", "set_notes", "set_title"]

DAGGER = "†"
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet200": "ImageNet-200",
    "imagenet": "ImageNet-1K",
}


def listed(names: Iterable[str]) -> str:
    """Names in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def caption(benchmark: Benchmark, field: Field, track: str, what: str) -> str:
    """The ID set, what is shown, the track with its N, the networks and the subset.

    Example:
        >>> caption(Benchmark("cifar10", (), {}, limit=500), Field(("s0",), {}, {}), "val", "Shift")
        'CIFAR-10: Shift. Track val: fitted on no images. One network. A seeded sample of at most \
500 images of each set.'
    """
    title = TITLES.get(benchmark.id_set, benchmark.id_set)
    parts = [f"{title}: {what}.", f"Track {track}: fitted on {_fitted_on(benchmark, track)}."]
    networks = len(field.networks)
    several = f"{networks} networks, mean ± population standard deviation over them"
    parts.append(f"{several}." if networks > 1 else "One network.")
    if field.noise_seeds > 1:
        parts.append(f"Up to {field.noise_seeds} noise seeds each, averaged.")
    if benchmark.limit is not None:
        parts.append(f"A seeded sample of at most {benchmark.limit:,} images of each set.")
    return " ".join(parts)


def _fitted_on(benchmark: Benchmark, track: str) -> str:
    runs = benchmark.of(track)
    found = []
    for kind, counts in (
        ("training", sorted({run.n_train for run in runs} - {0})),
        ("validation", sorted({run.n_val for run in runs} - {0})),
    ):
        if counts:
            found.append(f"N = {' or '.join(f'{n:,}' for n in counts)} {kind} images")
    return " and ".join(found) or "no images"


def differs(benchmark: Benchmark, group: str) -> bool:
    """Whether the sets of a group are not the published ones, all of them whole.

    Example:
        >>> differs(Benchmark("cifar10", (), {}), "near")  # none of its two sets is there
        True
    """
    names = benchmark.in_group(group)
    expected = PROTOCOLS.get(benchmark.id_set)
    if expected is not None and set(names) != {each.name for each in expected.in_group(group)}:
        return True
    inside = benchmark.in_group("id") if group in GROUPS else []
    return not all(benchmark.sets[name].whole for name in (*names, *inside))


def group_title(benchmark: Benchmark, group: str) -> str:
    """What stands over a group's columns, with a dagger where it is not the published one.

    Example:
        >>> group_title(Benchmark("cifar10", (), {}), "far")
        'far OOD †'
    """
    return f"{group} OOD {DAGGER}" if differs(benchmark, group) else f"{group} OOD"


def set_title(each: BenchmarkSet) -> str:
    """A set's name, with a dagger where it is not the published one.

    Example:
        >>> set_title(BenchmarkSet("svhn", "far", 500, 26_032))
        'svhn †'
    """
    return each.name if each.whole else f"{each.name} {DAGGER}"


def set_notes(benchmark: Benchmark, groups: Iterable[str]) -> list[str]:
    """Every set that is not the published one, and what it is instead.

    Example:
        >>> sets = {"svhn": BenchmarkSet("svhn", "far", 500, 26_032)}
        >>> set_notes(Benchmark("mine", (), sets), ["far"])
        ['† Not the published images. svhn: 500 of 26,032 images.']
    """
    wanted = ["id", *groups]
    parts = [
        _instead(each)
        for each in benchmark.sets.values()
        if each.group in wanted and not each.whole
    ]
    expected = PROTOCOLS.get(benchmark.id_set)
    if expected is not None:
        missing = [
            each.name
            for group in groups
            if group in GROUPS
            for each in expected.in_group(group)
            if each.name not in benchmark.sets
        ]
        parts += [f"{listed(missing)}: not there"] if missing else []
    return [f"{DAGGER} Not the published images. {'; '.join(parts)}."] if parts else []


def _instead(each: BenchmarkSet) -> str:
    inside = " (ID)" if each.group == "id" else ""
    if each.stand_in is not None:
        return f"{each.name}{inside}: {each.stand_in} ({each.n:,} images)"
    if each.protocol_n is None:
        return f"{each.name}{inside}: {each.n:,} images, no set of the protocol"
    return f"{each.name}{inside}: {each.n:,} of {each.protocol_n:,} images"


def run_notes(benchmark: Benchmark, field: Field, track: str) -> list[str]:
    """Methods that are not in a track's table, and why.

    A name in `skipped` may end in its track, "mcd (val)": on the other track it is not named.

    Example:
        >>> skipped = {"mcd (val)": "no dropout layers", "knn (train)": "out of memory"}
        >>> run_notes(Benchmark("cifar10", (), {}, skipped=skipped), \
Field((), {}, {"odin": "on 1 of 3 networks"}), "val")
        ['Left out, not run on every network: odin (on 1 of 3 networks).', \
'Not run: mcd (no dropout layers).']
    """
    notes = []
    others = tuple(f" ({each})" for each in ("val", "train") if each != track)
    here = {
        name.removesuffix(f" ({track})"): why
        for name, why in benchmark.skipped.items()
        if not name.endswith(others)
    }
    for lead, found in (("Left out, not run on every network", field.partial), ("Not run", here)):
        if found:
            parts = [f"{name} ({why.rstrip('.')})" for name, why in found.items()]
            notes.append(f"{lead}: {'; '.join(parts)}.")
    return notes
