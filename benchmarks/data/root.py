"""A benchmark root as npz files, for machines without pyarrow: some images of each set, 32 × 32.

    python benchmarks/data/root.py --root DIR --out DIR --limit 3000

Takes the rows that `tulip bench --limit` takes of both CIFARs' protocols, prepared as the bench
prepares them, and writes `sets.json`, one npz a set, and OpenOOD's lists for TinyImageNet, whose
rows depend on the ID set.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tulip_ood.data.batches import batches
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Root

ID_SETS = ("cifar10", "cifar100")
LISTED = "tin"


def rows(root: Root, id_set: str, role: str, limit: int) -> tuple[Any, list[int], list[str]]:
    """Pixels, labels and paths of one part."""
    plain = Preprocess(resize=32, crop=32, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    images, labels, paths = [], [], []
    for batch in batches(root.part(id_set, role).limited(limit).source, plain, batch_size=500):
        assert batch.inputs is not None
        pixels = batch.inputs.mul(255).round().byte().permute(0, 2, 3, 1)
        images.append(pixels.numpy())
        labels += [-1 if label is None else int(label) for label in batch.labels]
        paths += [row.path for row in batch.rows]
    return np.concatenate(images), labels, paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=3000)
    given = parser.parse_args()
    root, sets = Root.open(given.root), {}
    given.out.mkdir(parents=True, exist_ok=True)

    def keep(name: str, split: str, found: tuple[Any, list[int], list[str]]) -> None:
        file = f"{name}-{split}.npz"
        x, y, path = found
        np.savez_compressed(given.out / file, x=x, y=np.array(y), path=np.array(path))
        entry = {"file": file, "list": "path" if name == LISTED else "none", "stand_in": None}
        sets.setdefault(name, {})[split] = entry
        print(f"{file}: {len(x)} images")

    for id_set in ID_SETS:
        keep(id_set, "val", rows(root, id_set, "val", given.limit))
        keep(id_set, "test", rows(root, id_set, "test", given.limit))
    for one in protocol_of(ID_SETS[0]).in_group("far"):
        keep(one.name, "test", rows(root, ID_SETS[0], one.name, given.limit))
    listed: dict[str, tuple[Any, int]] = {}
    for id_set in ID_SETS:
        for role in (LISTED, "ood_val"):
            x, y, path = rows(root, id_set, role, given.limit)
            listed |= {name: (x[i], y[i]) for i, name in enumerate(path)}
        lists = given.out / "imglist" / id_set
        lists.mkdir(parents=True, exist_ok=True)
        for file in (given.root / "imglist" / id_set).glob(f"*_{LISTED}.txt"):
            shutil.copy(file, lists)
    images, labels = zip(*listed.values(), strict=True)
    keep(LISTED, "test", (np.stack(images), list(labels), list(listed)))
    (given.out / "sets.json").write_text(json.dumps(sets, indent=1) + "\n")


if __name__ == "__main__":
    main()
