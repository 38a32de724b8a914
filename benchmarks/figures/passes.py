"""Passes for the figures, made on a GPU and taken home: what `tulip reproduce --cache` reads.

    python benchmarks/figures/passes.py make --data ROOT --checkpoint A B --device cuda --out PACKED
    python benchmarks/figures/passes.py keep --data ROOT --checkpoint A B --packed PACKED --cache C
    python benchmarks/figures/passes.py check --data ROOT --checkpoint A B --images 300 --cache C
    python benchmarks/figures/passes.py compare --cache C --exact CPU_CACHE

`make` needs torch, numpy, safetensors and Pillow alone, and a root of npz files (pick.py); with
`--tf32` it makes passes with tensor cores, whose products have ten bits of mantissa. What it
writes is made to travel, in files of less than 16 MiB: base logits as they are, those of noisy and
drift passes as differences to them in half precision, of input noise the mean probabilities (the
figures read nothing else), no features. `check` and `compare` say how far half precision and TF32
move numbers (rounding.json).
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from tulip_ood.benchmark.cells import network_id
from tulip_ood.benchmark.pass_cache import PassCache
from tulip_ood.data.root import Root
from tulip_ood.detectors.recipes import Setting
from tulip_ood.figures.ablation import EPSILONS
from tulip_ood.figures.enhancement import score_at
from tulip_ood.figures.measured import (
    EPSILON,
    MeasuredNetwork,
    measure_networks,
    open_for,
    sizes,
)
from tulip_ood.network.features import Head
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.numerics.tasks import make_task

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
M = 10
LIMIT = 1 << 40
MOST_BYTES = 15 << 20  # of a file
Arrays = dict[str, np.ndarray]


class Held(PassCache):
    """A cache in memory that knows its keys; what it lacks is looked for on disk, if there is one.

    Args:
        disk: Where to look, and to keep what was made.
    """

    def __init__(self, disk: PassCache | None = None) -> None:
        self.records: dict[str, Passes] = {}
        self._disk = disk

    def get(self, key: str) -> Passes | None:
        if key not in self.records and self._disk is not None:
            found = self._disk.get(key)
            if found is not None:
                self.records[key] = found
        return self.records.get(key)

    def put(self, key: str, passes: Passes) -> None:
        self.records[key] = passes
        if self._disk is not None:
            self._disk.put(key, passes)


def halves(moved: Tensor, base: Tensor) -> np.ndarray:
    """A difference of logits; half precision has three digits of it."""
    return (moved - base).to(torch.float16).numpy()


def averaged(logits: Tensor) -> Tensor:
    """[N, M, o] as one sample [N, 1, o] whose probabilities are the mean of all."""
    log = logits.to(torch.float64).log_softmax(dim=-1)
    return (log.logsumexp(dim=1, keepdim=True) - np.log(logits.shape[1])).to(torch.float32)


def pack(key: str, passes: Passes, bases: dict[str, Tensor]) -> Arrays:
    """A record as arrays; its key and settings go along as text."""
    _, piece, what = json.loads(key)
    head: dict[str, Any] = {"key": key, "settings": passes.settings.to_dict()}
    arrays: Arrays = {}
    if "noise" in what:
        base = bases[piece]
        arrays["noisy"] = halves(passes.noisy, base)
        if passes.drift is not None:
            arrays["drift"] = halves(passes.drift, base)
    elif "measure" in what:
        ((name, values),) = passes.extras.items()
        arrays[f"extras.{name}"] = averaged(values).numpy()
    elif "heads" in what:
        arrays["weight"] = torch.stack([h.weight for h in passes.heads]).numpy()
        arrays["bias"] = torch.stack([h.bias for h in passes.heads]).numpy()
    else:
        arrays["base"] = passes.base.numpy()
        arrays |= {f"extras.{name}": value.numpy() for name, value in passes.extras.items()}
    return {"head": np.array(json.dumps(head)), **arrays}


def unpack(arrays: Arrays, bases: dict[str, Tensor]) -> tuple[str, Passes]:
    """The key and the record."""
    head = json.loads(str(arrays["head"]))
    _, piece, what = json.loads(head["key"])
    held = {name: torch.from_numpy(a) for name, a in arrays.items() if name != "head"}
    extras = {n.removeprefix("extras."): v for n, v in held.items() if n.startswith("extras.")}
    nothing = torch.zeros(0, bases[piece].shape[1] if piece in bases else 1)
    plain = Passes(nothing, nothing[None], None, None, None, PassSettings(**head["settings"]))
    if "noise" in what:
        base = bases[piece]
        drift = base + held["drift"].float() if "drift" in held else None
        return head["key"], replace(plain, noisy=base + held["noisy"].float(), drift=drift)
    if "heads" in what:
        heads = tuple(map(Head, held["weight"].unbind(), held["bias"].unbind()))
        return head["key"], replace(plain, heads=heads)
    if "base" in held:
        base = held["base"]
        plain = replace(plain, base=base, noisy=base.new_empty((0, *base.shape)))
    return head["key"], replace(plain, extras=extras)


def bases_of(records: dict[str, Passes]) -> dict[str, Tensor]:
    """Base logits by piece."""
    found = {}
    for key, passes in records.items():
        _, piece, what = json.loads(key)
        if not what:
            found[piece] = passes.base
    return found


def travelled(records: dict[str, Passes]) -> dict[str, Passes]:
    """The records as they come out at home."""
    bases = bases_of(records)
    return dict(unpack(pack(key, passes, bases), bases) for key, passes in records.items())


def write(records: dict[str, Passes], bases: dict[str, Tensor], out: Path, stem: str) -> None:
    """Some records, in as many files as they need; base logits first."""
    order = sorted(records, key=lambda key: json.loads(key)[2] != {})
    packed: Arrays = {}
    size, number = 0, 0
    for i, key in enumerate(order):
        arrays = pack(key, records[key], bases)
        own = sum(a.nbytes for a in arrays.values())
        if packed and size + own > MOST_BYTES:
            np.savez(out / f"{stem}-{number:02d}.npz", **packed)
            packed, size, number = {}, 0, number + 1
        packed |= {f"{i}/{name}": a for name, a in arrays.items()}
        size += own
    np.savez(out / f"{stem}-{number:02d}.npz", **packed)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Passes in TF32, which the product does not offer: it refuses to let rounding show.

    Weight noise is some hundred times larger than this rounding; `compare` says what it changes.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    with patch("tulip_ood.network.network.full_precision", nullcontext):
        yield


def make(given: argparse.Namespace) -> None:
    with tensor_cores() if given.tf32 else nullcontext():
        make_all(given)


def make_all(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    stages: dict[str, dict[str, Any]] = {
        "1-noise": {},
        "2-input": {"input_noise": True},
        "3-ablation": {"epsilons": EPSILONS},
    }
    for checkpoint in given.checkpoint:
        held = Held()
        for stage in given.stage or stages:
            started, known = time.perf_counter(), set(held.records)
            (network,) = measured(given, checkpoint, held, **stages[stage])
            new = {key: passes for key, passes in held.records.items() if key not in known}
            write(new, bases_of(held.records), given.out, f"{network.name}-{stage}")
            print(f"{network.name} {stage}: {time.perf_counter() - started:.1f} s", flush=True)


def measured(
    given: argparse.Namespace,
    checkpoint: str,
    cache: PassCache,
    epsilons: tuple[float, ...] = (EPSILON,),
    *,
    input_noise: bool = False,
) -> list[MeasuredNetwork]:
    return list(
        measure_networks(
            given.data,
            [checkpoint],
            cache=cache,
            epsilons=epsilons,
            n_samples=M,
            limit=given.images,
            input_noise=input_noise,
            batch_size=given.batch_size,
            device=given.device,
        )
    )


def keep(given: argparse.Namespace) -> None:
    """Under the names that networks have here: another torch describes their layers otherwise."""
    root, owners = Root.open(given.data), {}
    for checkpoint in given.checkpoint:
        _, opened = open_for(checkpoint, root)
        own = network_id(opened, Network(opened.module, make_task("classification")))
        owners[opened.name] = own
    cache, bases = PassCache(given.cache, LIMIT), {}
    for path in sorted(given.packed.glob("*.npz")):
        with np.load(path) as file:
            records: dict[str, Arrays] = {}
            for name in file.files:
                number, _, what = name.partition("/")
                records.setdefault(number, {})[what] = file[name]
        for arrays in records.values():
            key, passes = unpack(arrays, bases)
            version, piece, what = json.loads(key)
            if not what:
                bases[piece] = passes.base
            owner, slash, rest = piece.partition("/")
            here = owners[owner.rpartition("-")[0]] + slash + rest
            cache.put(json.dumps([version, here, what], sort_keys=True), passes)
        print(path.name, hashlib.sha256(path.read_bytes()).hexdigest()[:12], len(records))


def numbers(network: MeasuredNetwork) -> dict[str, float]:
    """AUROCs that the figures are made of."""
    constants = network.constants(Setting(EPSILON))
    ways: dict[str, Callable[[Passes], Tensor]] = {
        "S": lambda p: sizes(p).bound(constants.trace_xx, constants.lam),
        "J*": lambda p: score_at(constants, "ent", constants.j_star, p),
        "3 J*, EBO": lambda p: score_at(constants, "ebo", 3 * constants.j_star, p),
    }
    return {
        f"{way}, {name}": value
        for way, score in ways.items()
        for name, value in network.aurocs(score).items()
    }


def check(given: argparse.Namespace) -> None:
    """Figures' numbers from records as they are, and as they travel."""
    changes = {}
    for checkpoint in given.checkpoint:
        exact, moved = Held(PassCache(given.cache, LIMIT)), Held()
        (one,) = measured(given, checkpoint, exact)
        moved.records = travelled(exact.records)
        (other,) = measured(given, checkpoint, moved)
        before, after = numbers(one), numbers(other)
        changes[one.name] = max(abs(before[k] - after[k]) for k in before)
    note("half", {"images": given.images, "largest_change_of_an_auroc": changes})


def compare(given: argparse.Namespace) -> None:
    """Records that two caches both have: made here, and made on a GPU."""
    logits, traces, drifts, rows = 0.0, 0.0, 0.0, 0
    shared = sorted(p for p in given.cache.glob("*.safetensors") if (given.exact / p.name).exists())
    both = [[Passes.load(place / p.name) for place in (given.exact, given.cache)] for p in shared]
    bases = {len(one.base): (one.base, other.base) for one, other in both if len(one.base)}
    for one, other in both:
        n = one.noisy.shape[1]
        if not len(one.noisy) or n not in bases:
            continue
        exact, made = (
            sizes(replace(p, base=b)) for p, b in zip((one, other), bases[n], strict=True)
        )
        logits = max(logits, float((one.noisy - other.noisy).abs().max()))
        traces = max(traces, abs(float(made.trace.mean() / exact.trace.mean()) - 1))
        drifts = max(drifts, abs(float(made.drift.mean() / exact.drift.mean()) - 1))
        rows += n
    found = {"largest_change_of_a_logit": logits, "relative_change_of_mean_theta": traces}
    note("tf32", {"images": rows, **found, "relative_change_of_mean_drift": drifts})


def note(what: str, found: dict[str, Any]) -> None:
    """Write it beside what is known already."""
    path = HERE / "rounding.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, what: found}, indent=1) + "\n")
    print(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "keep", "check", "compare"))
    parser.add_argument("--data")
    parser.add_argument("--checkpoint", nargs="+", default=[])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--device")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--stage", nargs="*", help="1-noise, 2-input, 3-ablation; default: all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--exact", type=Path, help="a cache of float32 passes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    {"make": make, "keep": keep, "check": check, "compare": compare}[given.what](given)


if __name__ == "__main__":
    main()
