"""The OpenOOD benchmark: every method on every network, from passes that are made once.

What is done is a list of cells (see `cells`) and of pieces of sets (see `pieces`). Every piece of
work is kept as soon as it is done (see `bench_folder`); what is there is not done again.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.benchmark.bench_loading import load_benchmark
from tulip_ood.benchmark.bench_work import NetworkWork
from tulip_ood.benchmark.cells import TRACKS, BenchNetwork, network_id
from tulip_ood.benchmark.entries import parse_entries
from tulip_ood.benchmark.pass_cache import PassCache
from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import NotThereError, Part, Root
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

__all__ = ["CACHE_LIMIT", "bench"]

CACHE_LIMIT = 4 << 30
Progress = Callable[[str, int, int], None]  # (what, done, of how many), in images × methods


def bench(
    id_set: str,
    root: Root,
    networks: Sequence[BenchNetwork],
    *,
    out: str | Path,
    methods: str | Sequence[str] = "all",
    tracks: Iterable[str] = ("val",),
    seeds: Sequence[int] = (0,),
    tune: str = "ood",
    limit: int | None = None,
    batch_size: int | None = None,
    cache_limit: int = CACHE_LIMIT,
    workers: int | None = None,
    only: int | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Run OpenOOD's protocol, and keep everything in a folder.

    Args:
        id_set: "cifar10", "cifar100", "imagenet200" or "imagenet".
        root: The data.
        networks: At least one; several of one kind are the training seeds of a table.
        out: The folder; a run that was stopped goes on there, methods and networks can be added.
        methods: "all", or entries as in `benchmark.entries`.
        tracks: "val" (everything is fitted on the same validation images), "train", or both.
        seeds: Noise seeds.
        tune: What the parameters of TULiP's rivals are chosen on: "ood" (OOD validation images,
            as OpenOOD does), "pseudo" (made from the validation images) or "none". TULiP sees no
            OOD image unless an entry asks for it: `tulip[tune=ood]`.
        limit: Images of each test set, a seeded subset; all by default.
        batch_size: Images in one forward pass.
        cache_limit: Bytes of passes that are kept for methods that come later.
        workers: How many decode images; by default one a processor, at most 16.
        only: Run the network with this number alone; the others take part in its ensemble. So
            several processes can share the networks out among them.
        progress: Called with (what, done, of how many).

    Example:
        >>> import json, tempfile
        >>> import numpy as np, torch
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> from tulip_ood.data.protocol import protocol_of
        >>> _ = torch.manual_seed(0)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     draw = np.random.default_rng(0).integers
        ...     for name, n in (("val", 40), ("test", 20), ("svhn", 20)):
        ...         x = draw(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        ...         np.savez(f"{place}/{name}.npz", x=x, y=np.arange(n) % 10)
        ...     here = lambda name: {"file": f"{name}.npz", "list": "none", "stand_in": "noise"}
        ...     sets = {"cifar10": {"val": here("val"), "test": here("test")},
        ...             "svhn": {"test": here("svhn")}}
        ...     _ = Path(place, "sets.json").write_text(json.dumps(sets))
        ...     network = BenchNetwork("net", ResNet18Small(10).eval(),
        ...                            protocol_of("cifar10").preprocess)
        ...     found = bench("cifar10", Root.open(place), [network], methods="msp,ebo",
        ...                   out=f"{place}/out", tune="none")
        >>> [run.method for run in found.runs]
        ['msp', 'ent', 'ebo']
    """
    entries = parse_entries(methods)
    tracks = _check_tracks(tracks)
    if not networks:
        raise InputError("there is no network to run")
    if tune not in ("none", "ood", "pseudo"):
        raise InputError(f"tune must be none, ood or pseudo, got {tune!r}")
    parts, tests = _open(id_set, root, tracks, limit)
    folder = BenchFolder(Path(out))
    protocol = protocol_of(id_set)
    groups = {"test": "id", **{s.name: s.group for s in protocol.sets}}
    fitted_on = {role: _described(part, role) for role, part in parts.items()}
    folder.claim(
        {"id_set": id_set, "limit": limit, "val": fitted_on["val"]["digest"]},
        {role: _described(part, groups[role]) for role, part in tests.items()},
        fitted_on,
    )
    task = make_task("classification")
    shared = [Network(network.module, task) for network in networks]
    ids = [network_id(*pair) for pair in zip(networks, shared, strict=True)]
    if len({name.rpartition("-")[2] for name in ids}) < len(ids):
        raise InputError("two of the networks are the same: give each one once")
    for entry in entries:
        entry.check_settings(shared[0])
    work = [
        NetworkWork(
            folder,
            one,
            mine,
            name,
            entries,
            tracks,
            seed,
            tune,
            {name: (net, n.preprocess) for name, net, n in zip(ids, shared, networks, strict=True)},
            tests,
            {role: about["digest"] for role, about in fitted_on.items()},
            workers,
        )
        for i, (one, mine, name) in enumerate(zip(networks, shared, ids, strict=True))
        for seed in seeds
        if only is None or i == only
    ]
    total = sum(one.left() for one in work)
    done = 0
    cache = PassCache(folder.path / "passes", cache_limit)

    def say(what: str, more: int = 0) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(what, done, max(total, done))

    failed: dict[str, str] = {}
    for one in work:
        failed |= one.run(parts, cache, batch_size, say)
    found = load_benchmark(folder.path)
    return replace(found, skipped={**found.skipped, **failed})


def _check_tracks(tracks: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(tracks))
    if not chosen or set(chosen) - set(TRACKS):
        raise InputError(f"tracks must be some of {', '.join(TRACKS)}; got {', '.join(chosen)}")
    return chosen


def _open(
    id_set: str, root: Root, tracks: Sequence[str], limit: int | None
) -> tuple[dict[str, Part], dict[str, Part]]:
    """What is fitted on, and what is scored."""
    protocol = protocol_of(id_set)
    outside = [each.name for each in protocol.sets if each.group in ("near", "far")]
    parts = _there(root, id_set, ["ood_val", *(["train"] if "train" in tracks else [])])
    parts["val"] = root.part(id_set, "val")
    tests = {"test": root.part(id_set, "test")}
    tests |= _there(root, id_set, [each.name for each in protocol.sets])
    if not set(outside) & set(tests):
        raise DataError(
            f"{root.path} has none of the OOD sets of {id_set} ({', '.join(outside)}): `tulip data "
            f"check` says what is where"
        )
    if limit is not None:
        tests = {role: part.limited(limit) for role, part in tests.items()}
    return parts, tests


def _there(root: Root, id_set: str, roles: Iterable[str]) -> dict[str, Part]:
    """The parts that are there; one that is there and damaged is an error, not an absence."""
    found = {}
    for role in roles:
        with contextlib.suppress(NotThereError):
            found[role] = root.part(id_set, role)
    return found


def _described(part: Part, group: str) -> dict[str, Any]:
    return {
        "name": part.name,
        "group": group,
        "n": len(part),
        "protocol_n": part.expected,
        "stand_in": part.stand_in,
        "notes": list(part.notes),
        "digest": part.digest(),
    }
