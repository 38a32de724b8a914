"""Pack an OpenOOD-like parquet root into one npz of uint8 images, for machines without pyarrow.

    python benchmarks/data/pack.py --root DIR --id cifar10 --out sets.npz --test 2000 --ood 1000
    python benchmarks/data/pack.py --train DIR --out train.npz

The root holds Hugging Face parquet files, `sets.json`, and OpenOOD's image lists under `imglist/`.
Subsets are drawn with a fixed seed. Images that are not 32 × 32 are resized (shorter side) and
cropped by the package's own preprocessing. Training images come from a folder of classes.
"""

import argparse
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

NEAR = {"cifar10": ("cifar100", "tin"), "cifar100": ("cifar10", "tin")}
FAR = ("mnist", "svhn", "texture", "places365")


def decode(raw: bytes, side: int = 32) -> np.ndarray:
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    width, height = image.size
    if min(width, height) != side:
        scale = side / min(width, height)
        size = (max(side, round(width * scale)), max(side, round(height * scale)))
        image = image.resize(size, Image.Resampling.BILINEAR)
        width, height = image.size
    left, top = (width - side) // 2, (height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)))


def read(root: Path, sets: dict, name: str) -> tuple[list[bytes], list[str], np.ndarray]:
    table = pq.read_table(root / sets[name]["test"]["file"])
    rows = table["image"].to_pylist()
    labels = np.asarray(table["label"].to_pylist())
    return [row["bytes"] for row in rows], [row["path"] for row in rows], labels


def listed(root: Path, id_set: str, name: str, paths: list[str]) -> np.ndarray:
    lines = (root / "imglist" / id_set / f"{name}.txt").read_text().splitlines()
    where = {path: i for i, path in enumerate(paths)}
    return np.asarray([where[line.split()[0]] for line in lines if line.split()[0] in where])


def pack_train(folder: Path, out: Path) -> None:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, c) for c, path in enumerate(classes) for file in sorted(path.iterdir())]
    images = np.stack([decode(file.read_bytes()) for file, _ in files])
    labels = np.asarray([c for _, c in files])
    np.savez(out, train=images, train_labels=labels)
    print(images.shape, np.bincount(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--train", type=Path, help="a folder with a folder of images a class")
    parser.add_argument("--id", choices=sorted(NEAR), default="cifar10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--ood", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.train is not None:
        pack_train(arguments.train, arguments.out)
    if arguments.root is None:
        return
    root, rng = arguments.root, np.random.default_rng(0)
    sets = json.loads((root / "sets.json").read_text())
    packed: dict[str, np.ndarray] = {}

    def keep(name: str, raw: list[bytes], index: np.ndarray) -> None:
        packed[name] = np.stack([decode(raw[i]) for i in index])

    raw, paths, labels = read(root, sets, arguments.id)
    if sets[arguments.id]["test"]["list"] == "path":
        val = listed(root, arguments.id, f"val_{arguments.id}", paths)
        test = listed(root, arguments.id, f"test_{arguments.id}", paths)
    else:  # a class-balanced tenth is validation
        order = rng.permutation(len(labels))
        each = len(labels) // 10 // (labels.max() + 1)
        val = np.concatenate([order[labels[order] == c][:each] for c in range(labels.max() + 1)])
        test = np.setdiff1d(order, val)
    test = rng.permutation(test)[: arguments.test]
    keep("id_val", raw, val)
    keep("id_test", raw, test)
    packed["id_val_labels"], packed["id_test_labels"] = labels[val], labels[test]
    for group, names in (("near", NEAR[arguments.id]), ("far", FAR)):
        for name in names:
            raw, paths, _ = read(root, sets, name)
            every = np.arange(len(raw))
            if name == "tin":
                every = listed(root, arguments.id, "test_tin", paths)
                keep("ood_val", raw, listed(root, arguments.id, "val_tin", paths))
            keep(f"{group}_{name}", raw, rng.permutation(every)[: arguments.ood])
    np.savez_compressed(arguments.out, **packed)
    print({name: array.shape for name, array in packed.items()})


if __name__ == "__main__":
    main()
