"""What the measurements of the cluster share: images, networks, a detector, a comparison."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn

import tulip_ood
from tulip_ood.data.preprocess import Preprocess

# Ray gives its workers a low priority: beside others' work on this machine they would stand still.
os.environ.setdefault("RAY_worker_niceness", "0")
SIDE = 32
SAMPLES = 2  # so an image takes four passes
MILLISECONDS = float(os.environ.get("MILLISECONDS", "1"))  # what an image costs in all
PREPARED = Preprocess(SIDE, SIDE, (0.5,) * 3, (0.25,) * 3)
HERE = Path(__file__).parent


class Small(nn.Module):
    """A few convolutions, trained on nothing: what it says does not matter here."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(dim=(2, 3)))


class Waiting(Small):
    """Takes its time but no processor, like a network on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:  # not while it is looked at
            time.sleep(len(x) * MILLISECONDS / 1000 / (SAMPLES + 2))
        return super().forward(x)


def _seeded(make: type[nn.Module], **how: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(**how)


def waiting() -> nn.Module:
    return _seeded(Waiting)


def computing() -> nn.Module:
    return _seeded(Small, width=72)


def free() -> nn.Module:
    return _seeded(Small, width=2)


def detector(folder: Path, name: str) -> str:
    """The file of a detector on one of these networks."""
    file = folder / f"{name}.safetensors"
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 3, SIDE, SIDE, generator=generator)
    made = tulip_ood.Tulip(globals()[name](), n_samples=SAMPLES, j=1.0)
    made.fit([(x, torch.arange(256) % 10)], recipe="balanced")
    made.provenance["preprocess"] = PREPARED.to_json()
    made.save(file)
    return str(file)


def images(folder: Path, n: int, bad: int = 0) -> Path:
    """`n` small PNG files, the pixels of each drawn from its number; every n/bad-th is damaged."""
    place = folder / f"images-{n}"
    place.mkdir()
    for i in range(n):
        pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        path = place / f"{i:06d}.png"
        Image.fromarray(pixels).save(path, compress_level=1)
        if bad and i % (n // bad) == n // bad // 2:
            os.truncate(path, path.stat().st_size // 2)
    return place


def compare(found: Path, expected: Path) -> dict[str, Any]:
    """Whether every row is there once, and how far scores are from those of another table."""
    ours, theirs = pq.read_table(found), pq.read_table(expected)
    rows = ours["row"].to_pylist()
    scores = [np.array(t["score"].to_pylist(), dtype=float) for t in (ours, theirs)]
    known = ~np.isnan(scores[1])
    same = ("path", "prediction", "accepted", "error")
    spread = np.ptp(scores[1][known]) or 1.0  # where all images are the same
    return {
        "rows": len(rows),
        "every_row_once": rows == list(range(len(theirs))),
        "without_a_score": int((~known).sum()),
        "same_rows_without_a_score": bool((np.isnan(scores[0]) == ~known).all()),
        "other_columns_equal": all(ours[c].equals(theirs[c]) for c in same),
        "largest_difference_of_the_range": float(
            np.abs(scores[0] - scores[1])[known].max() / spread
        ),
    }


def processes(under: int) -> Iterator[tuple[int, str, float]]:
    """(number, name, MB) of every process below another one."""
    parents: dict[int, int] = {}
    known: dict[int, tuple[str, float]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            stat = (place / "stat").read_text()
            title = (place / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            continue
        after = stat.rpartition(")")[2].split()
        parents[int(place.name)] = int(after[1])
        pages = int(after[21])
        known[int(place.name)] = (title, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    for number, (title, mb) in known.items():
        ancestor = number
        while ancestor in parents and ancestor != under:
            ancestor = parents[ancestor]
        if ancestor == under and number != under:
            yield number, title, mb


def scorers(under: int) -> list[int]:
    """The processes that hold the network."""
    return sorted(n for n, title, _ in processes(under) if title.startswith("ray::Scorer"))
