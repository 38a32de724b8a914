"""A small benchmark root for the figures: some images of every set, in files that travel.

    python benchmarks/figures/pick.py --data ROOT --images 2000 --out build/figures/root

Written as npz: the machine with the GPU needs no pyarrow. Both CIFAR protocols see the same images
of an OOD set. `--train cifar10=FILE.npz` (x, y) adds some training images: X of `closeness`.
"""

import argparse
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tulip_ood.data.decoding import decode
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Root
from tulip_ood.data.selection import Selected
from tulip_ood.data.source import Source
from tulip_ood.numerics.random import permutation

ID_SETS = ("cifar10", "cifar100")
TRAINING = 256


def some(rows: Iterable[int], most: int, name: str) -> list[int]:
    """A seeded choice, in rising order."""
    known = sorted(rows)
    order = permutation(len(known), seed=0, name=f"figures/{name}")[:most].tolist()
    return sorted(known[i] for i in order)


def write(path: Path, source: Source, labels: dict[int, Any], rows: list[int]) -> None:
    """Images and labels of some rows; the zip holds no times, so that equal images are equal."""
    pixels = [np.asarray(decode(raw)) for _, raw in Selected(source, rows).read()]
    held = {"x": np.stack(pixels), "y": np.array([labels.get(row, -1) for row in rows])}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **held)
    path.write_bytes(buffer.getvalue())
    print(path.name, held["x"].shape, f"{path.stat().st_size / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--train", nargs="*", default=[], metavar="SET=FILE")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    root = Root.open(given.data)
    sets: dict[str, dict[str, dict[str, str | None]]] = {}
    asked: dict[str, list[Selected]] = {}
    labels: dict[str, dict[int, Any]] = {}

    def add(name: str, split: str, source: Source, rows: list[int], stand_in: str | None) -> None:
        file = f"{name}-{split}.npz"
        write(given.out / file, source, labels.get(name, {}), rows)
        sets.setdefault(name, {})[split] = {"file": file, "list": "none", "stand_in": stand_in}

    stand_ins = {}
    for id_set in ID_SETS:
        for role in ("val", "test", *(s.name for s in protocol_of(id_set).sets)):
            if not root.has(id_set, role):
                continue
            part = root.part(id_set, role)
            chosen = part.source
            assert isinstance(chosen, Selected), f"{part.name}: expected a root with sets.json"
            if role in ("val", "test"):
                known = zip(chosen.rows, chosen.labels(), strict=True)
                labels.setdefault(id_set, {}).update(known)
            if role == "val":
                add(id_set, "val", chosen.base, list(chosen.rows), part.stand_in)
            else:
                asked.setdefault(part.name, []).append(chosen)
                stand_ins[part.name] = part.stand_in
    for name, several in asked.items():
        shared = set.intersection(*(set(chosen.rows) for chosen in several))
        add(name, "test", several[0].base, some(shared, given.images, name), stand_ins[name])
    for place in given.train:
        name, _, file = place.partition("=")
        with np.load(file) as held:
            rows = some(range(len(held["y"])), TRAINING, f"{name}-train")
            target = given.out / f"{name}-train.npz"
            np.savez_compressed(target, x=held["x"][rows], y=held["y"][rows])
        sets[name]["train"] = {"file": target.name, "list": "none", "stand_in": None}
    (given.out / "sets.json").write_text(json.dumps(sets, indent=1) + "\n")


if __name__ == "__main__":
    main()
