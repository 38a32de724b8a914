"""What a reader of a table must know: networks, images, fitting data, tuning, what was not run."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tulip_ood.benchmark.averages import Field, is_ensemble, name_of
from tulip_ood.benchmark.results import GROUPS
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet
from tulip_ood.data.protocol import PROTOCOLS

__all__ = [
    "architectures",
    "caption",
    "differs",
    "ensemble_notes",
    "finding_notes",
    "fitting_notes",
    "group_title",
    "listed",
    "method_notes",
    "network_notes",
    "run_notes",
    "set_notes",
    "set_title",
    "tuning_notes",
]

DAGGER = "†"
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet200": "ImageNet-200",
    "imagenet": "ImageNet-1K",
}
_TUNED_ON = {
    "ood": "OOD validation images",
    "pseudo": "images made from the validation images",
    "none": "no OOD images",
}
_ROLES = {"val": "validation", "train": "training", "ood_val": "OOD validation"}
_MOST_FINDINGS = 4
_FINDING = 120  # characters of one


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
    for role, counts in (
        ("train", sorted({run.n_train for run in runs} - {0})),
        ("val", sorted({run.n_val for run in runs} - {0})),
    ):
        if counts:
            each = benchmark.fitted_on.get(role)
            mark = f" {DAGGER}" if each is not None and not each.whole else ""
            numbers = " or ".join(f"{n:,}" for n in counts)
            found.append(f"N = {numbers} {_ROLES[role]} images{mark}")
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


def _instead(each: BenchmarkSet, role: str = "") -> str:
    name = f"{each.name} ({role or 'ID'})" if role or each.group == "id" else each.name
    of = "" if each.protocol_n is None else f" of {each.protocol_n:,}"
    if each.stand_in is not None:
        return f"{name}: {each.stand_in} ({each.n:,}{of} images)"
    if each.protocol_n is None:
        return f"{name}: {each.n:,} images, no set of the protocol"
    return f"{name}: {each.n:,}{of} images"


def fitting_notes(benchmark: Benchmark, track: str) -> list[str]:
    """Every set that a track was fitted or tuned on and that is not the published one.

    Example:
        >>> val = BenchmarkSet("cifar10", "id", 500, 1_000, "others")
        >>> fitting_notes(Benchmark("cifar10", (), {}, fitted_on={"val": val}), "val")
        ['† Not fitted on the published images. cifar10 (validation): others (500 of 1,000 \
images).']
    """
    roles = ["val"]
    if track == "train":
        roles.append("train")
    if any(run.tune == "ood" for run in benchmark.of(track)):
        roles.append("ood_val")
    there = {role: benchmark.fitted_on[role] for role in roles if role in benchmark.fitted_on}
    parts = [_instead(each, _ROLES[role]) for role, each in there.items() if not each.whole]
    return [f"{DAGGER} Not fitted on the published images. {'; '.join(parts)}."] if parts else []


def architectures(benchmark: Benchmark, track: str) -> dict[str, str]:
    """The class of every network of a track, where it is known.

    Example:
        >>> architectures(Benchmark("cifar10", (), {}), "val")
        {}
    """
    return {run.network: run.architecture for run in benchmark.of(track) if run.architecture}


def network_notes(benchmark: Benchmark, field: Field, track: str) -> list[str]:
    """Which networks were run; whether they differ in more than their seed.

    Example:
        >>> network_notes(Benchmark("cifar10", (), {}), Field(("a", "b"), {}, {}), "val")
        ['Networks: a and b.']
    """
    known = architectures(benchmark, track)
    kinds = set(known.values())
    lead = "Network" if len(field.networks) == 1 else "Networks"
    if len(kinds) > 1:
        named = listed(f"{name} ({known.get(name, '?')})" for name in field.networks)
        notes = [
            f"Networks of different architectures are averaged here: {named}. One kind alone: "
            f"tulip bench table --network NAME."
        ]
    else:
        of_kind = f" ({next(iter(kinds))})" if kinds else ""
        notes = [f"{lead}{of_kind}: {listed(field.networks)}."]
    seeds = {run.network: run.training_seed for run in benchmark.of(track)}
    alike = Counter((name_of(network), seeds.get(network)) for network in field.networks)
    twice = [n for n in field.networks if alike[name_of(n), seeds.get(n)] > 1]
    if twice:
        notes.append(
            f"{listed(twice)} have the same name and no training seeds that differ: if one was "
            f"made anew in the place of another, choose with tulip bench table --network ID."
        )
    return notes


def ensemble_notes(field: Field) -> list[str]:
    """What is different about the rows of ensembles.

    Example:
        >>> ensemble_notes(Field(("s0", "s1"), {"knn": {}}, {}))
        []
    """
    found = [name for name in field.methods if is_ensemble(name)]
    if not found:
        return []
    if len(field.networks) == 1:
        return [f"{listed(found)}: of several networks, not of this one alone."]
    return [
        f"{listed(found)}: nearly the same ensemble of all networks stands for each of them; so "
        f"there is no ± and no interval over networks, and it is not among those compared for bold."
    ]


def tuning_notes(benchmark: Benchmark, track: str) -> list[str]:
    """What parameters were chosen on, by TULiP and by its rivals.

    Example:
        >>> tuning_notes(Benchmark("cifar10", (), {}), "val")
        []
    """
    found: dict[str, set[str]] = {}
    for run in benchmark.of(track):
        if run.parameters:  # otherwise there is nothing to choose
            found.setdefault(run.method, set()).add(_TUNED_ON.get(run.tune, run.tune))
    on = {name: " or ".join(sorted(words)) for name, words in found.items()}
    parts = []
    for title, own in (
        ("of TULiP’s rivals", {n: words for n, words in on.items() if not _has_tulip(n)}),
        ("of TULiP", {n: words for n, words in on.items() if _has_tulip(n)}),
    ):
        if own:
            parts.append(f"{title} on {_mostly(own)}")
    return [f"Parameters chosen: {'; '.join(parts)}."] if parts else []


def _has_tulip(method: str) -> bool:
    parts = method.partition("[")[0].split("&")
    return any(part.startswith("tulip") for part in parts)


def _mostly(on: Mapping[str, str]) -> str:
    """What most have in common, and the exceptions by name."""
    usual = Counter(on.values()).most_common(1)[0][0]
    others: dict[str, list[str]] = {}
    for name, words in on.items():
        if words != usual:
            others.setdefault(words, []).append(name)
    if not others:
        return usual
    but = [f"{listed(names)} (on {words})" for words, names in others.items()]
    return f"{usual}, but for {listed(but)}"


def finding_notes(benchmark: Benchmark, track: str) -> list[str]:
    """What looked odd while methods were fitted: each once, a few of them.

    What differs in numbers alone, from network to network, counts as the same.

    Example:
        >>> finding_notes(Benchmark("cifar10", (), {}), "val")
        []
    """
    texts: dict[str, str] = {}
    methods: dict[str, dict[str, None]] = {}
    for run in benchmark.of(track):
        for text in run.findings:
            alike = re.sub(r"[\d.,]*\d", "0", text)
            texts.setdefault(alike, _shortened(text))
            methods.setdefault(alike, {})[run.method] = None
    if not texts:
        return []
    everyone = {run.method for run in benchmark.of(track)}
    shown = []
    for alike, text in texts.items():
        whole = len(everyone) > 1 and set(methods[alike]) == everyone
        shown.append(f"{'all methods' if whole else listed(methods[alike])}: {text}")
    more = len(shown) - _MOST_FINDINGS
    parts = shown[:_MOST_FINDINGS]
    if more > 0:
        parts.append(f"and {more} more")
    return [
        f"Seen while fitting (in full: tulip bench --json): {'; '.join(parts)}.".replace("….", "…")
    ]


def _shortened(finding: str) -> str:
    """The first sentence, without the finding's code in brackets."""
    plain = re.split(r"\s*\[[a-z-]+\]$|\. (?=[A-Z])", finding)[0].rstrip(".")
    return textwrap.shorten(plain, _FINDING, placeholder=" …").replace(", …", " …")


def method_notes(
    benchmark: Benchmark, field: Field, track: str, groups: Sequence[str]
) -> list[str]:
    """What belongs below any table of a track.

    Example:
        >>> method_notes(Benchmark("mine", (), {}), Field(("s0",), {}, {}), "val", ["far"])
        ['Network: s0.']
    """
    return [
        *network_notes(benchmark, field, track),
        *ensemble_notes(field),
        *tuning_notes(benchmark, track),
        *set_notes(benchmark, groups),
        *fitting_notes(benchmark, track),
        *run_notes(benchmark, field, track),
    ]


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
