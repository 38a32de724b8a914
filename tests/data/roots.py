"""Tiny benchmark roots in both layouts: a coloured square stands for every image."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = 10


def square(shade: int, side: int = 8) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (side, side), (shade % 256, 50, 200)).save(held, "PNG")
    return held.getvalue()


def write_parquet(
    file: Path, labels: Sequence[int], paths: Sequence[str | None], group: int = 7
) -> None:
    """A Hugging Face image set; row i is a square of the shade i."""
    rows = [
        {"image": {"bytes": square(i), "path": path}, "label": label}
        for i, (label, path) in enumerate(zip(labels, paths, strict=True))
    ]
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, row_group_size=group)


def write_list(file: Path, lines: Sequence[tuple[str, int]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{path} {label}\n" for path, label in lines))


def write_sets(folder: Path, sets: Any) -> None:
    (folder / "sets.json").write_text(json.dumps(sets))


def parquet_root(folder: Path) -> Path:
    """cifar10 and tin with lists, cifar100 and mnist without, svhn as npz with paths."""
    ten = [f"cifar10/test/{i:04d}.png" for i in range(100)]
    write_parquet(folder / "ten.parquet", [i % CLASSES for i in range(100)], ten)
    write_parquet(folder / "hundred.parquet", [i % 100 for i in range(1000)], [None] * 1000, 100)
    tin = [f"tin/val/{i}.JPEG" for i in range(30)]
    write_parquet(folder / "tin.parquet", [-1] * 30, tin)
    np.savez(folder / "mnist.npz", x=np.zeros((12, 28, 28), np.uint8))
    svhn = np.array([f"svhn/{i}.png" for i in range(9)])
    np.savez(folder / "svhn.npz", x=np.zeros((9, 8, 8, 3), np.uint8), y=np.arange(9), path=svhn)
    lists = folder / "imglist"
    # In another order than the file's, as OpenOOD's are.
    write_list(lists / "cifar10/val_cifar10.txt", [(ten[i], i % CLASSES) for i in (93, 3, 40)])
    write_list(
        lists / "cifar10/test_cifar10.txt",
        [(ten[i], i % CLASSES) for i in range(99, -1, -1) if i not in (93, 3, 40)],
    )
    write_list(lists / "cifar10/val_tin.txt", [(tin[i], -1) for i in (8, 2)])
    write_list(lists / "cifar10/test_tin.txt", [(tin[i], -1) for i in (9, 1, 4)])
    write_list(lists / "cifar10/test_svhn.txt", [(f"svhn/{i}.png", -1) for i in (5, 2)])
    write_list(lists / "cifar100/test_cifar10.txt", [(path, -1) for path in ten])
    write_sets(
        folder,
        {
            "cifar10": {
                "test": {"file": "ten.parquet", "list": "path", "lists": "imglist/cifar10"}
            },
            "cifar100": {"test": {"file": "hundred.parquet", "list": "none", "stand_in": None}},
            "tin": {"test": {"file": "tin.parquet", "list": "path", "stand_in": None}},
            "mnist": {"file": "mnist.npz", "list": "none", "stand_in": "twelve black squares"},
            "svhn": {"test": {"file": "svhn.npz", "list": "path"}},
        },
    )
    return folder


def listed_root(folder: Path, inside: str = "data") -> Path:
    """OpenOOD's own layout: cifar10 with tin and cifar10c; imagenet with textures."""
    base = folder / inside
    plan = {
        "cifar10/train_cifar10.txt": ("images_classic", "cifar10/train", 6, 0),
        "cifar10/val_cifar10.txt": ("images_classic", "cifar10/val", 3, 0),
        "cifar10/test_cifar10.txt": ("images_classic", "cifar10/test", 5, 0),
        "cifar10/val_tin.txt": ("images_classic", "tin/val", 2, -1),
        "cifar10/test_tin.txt": ("images_classic", "tin/test", 4, -1),
        "cifar10/test_cifar10c.txt": ("images_classic", "cifar10c", 4, 1),
        "imagenet/test_textures.txt": ("images_classic", "texture", 2, -1),
        "imagenet/test_imagenet_v2.txt": ("images_largescale", "imagenet_v2", 2, 7),
        "imagenet200/test_imagenet200_v2.txt": ("images_largescale", "imagenet_v2", 2, 7),
    }
    for name, (images, place, count, label) in plan.items():
        lines = []
        for i in range(count):
            path = base / images / place / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(square(i))
            lines.append((f"{place}/{i}.png", label))
        write_list(base / "benchmark_imglist" / name, lines)
    return folder
