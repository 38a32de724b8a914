"""Packs of pictures from public repositories, for the tasks that `Auto` is judged on.

Each script beside this one makes the packs of one task:

    python benchmarks/auto/packs/signs.py --mirrors FOLDER --out DATA

`FOLDER` holds a clone of every repository that the script names (its first lines), as
`OWNER+NAME`, bare or not. A pack is an npz of JPEG files, all of one size and one quality, so that
neither tells where a picture is from: `bytes`, `off`, `y`, and `part` (0 train, 1 validation, 2
test) where pictures come in groups that must not be divided. The same clones give the same packs.
"""

import argparse
import io
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.numerics.random import permutation

QUALITY = 92
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".gif", ".webp")


@dataclass(frozen=True)
class Picture:
    """A file in a repository."""

    path: PurePosixPath
    blob: str

    @property
    def folder(self) -> str:
        """The name of the folder it lies in: mostly its class."""
        return self.path.parent.name


@dataclass(frozen=True)
class Repository:
    """A clone, read without a work tree."""

    git: Path

    @classmethod
    def of(cls, mirrors: Path, name: str) -> "Repository":
        """The clone of OWNER/NAME."""
        folder = mirrors / name.replace("/", "+")
        for found in (folder / "repo" / ".git", folder / "repo", folder / ".git", folder):
            if (found / "HEAD").is_file():
                return cls(found)
        raise SystemExit(f"no clone of github.com/{name} at {folder}: git clone it there")

    def _run(self, *arguments: str) -> bytes:
        command = ["git", "--git-dir", str(self.git), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def file(self, path: str, revision: str = "HEAD") -> bytes:
        """One file."""
        return self._run("cat-file", "blob", f"{revision}:{path}")

    def pictures(self, under: str = "", revision: str = "HEAD") -> list[Picture]:
        """All pictures below a folder, by path."""
        listed = self._run("ls-tree", "-r", "-z", revision, "--", *([under] if under else []))
        found = []
        for line in listed.decode("utf-8", "surrogateescape").split("\0"):
            about, _, path = line.partition("\t")
            if path.lower().endswith(PICTURES):
                found.append(Picture(PurePosixPath(path), about.split()[2]))
        return sorted(found, key=lambda picture: str(picture.path))

    def text(self, path: str) -> str:
        """A text file of the newest revision."""
        return self._run("show", f"HEAD:{path}").decode()

    def files(self, pictures: Iterable[Picture]) -> Iterator[bytes | None]:
        """The bytes of every file; None for one that the clone does not hold."""
        command = ["git", "--git-dir", str(self.git), "cat-file", "--batch"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
            assert asked.stdin is not None
            assert asked.stdout is not None
            for picture in pictures:
                asked.stdin.write(picture.blob.encode() + b"\n")
                asked.stdin.flush()
                answer = asked.stdout.readline().split()
                if answer[-1] == b"missing":
                    yield None
                    continue
                size = int(answer[2])
                yield asked.stdout.read(size + 1)[:size]

    def images(
        self, pictures: Sequence[Picture], prepare: Callable[[Image.Image], Image.Image]
    ) -> tuple[list[Picture], list[Image.Image]]:
        """The pictures that are there and can be read, each prepared."""
        kept, found = [], []
        for picture, data in zip(pictures, self.files(pictures), strict=True):
            if data is None:
                continue
            try:
                with Image.open(io.BytesIO(data)) as opened:
                    found.append(prepare(_plain(opened)))
            except (OSError, ValueError):
                continue
            kept.append(picture)
        if len(kept) < len(pictures):
            print(f"  {len(pictures) - len(kept)} of {len(pictures)} pictures cannot be read")
        return kept, found


def _plain(image: Image.Image) -> Image.Image:
    """RGB; what is transparent becomes white."""
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def square(size: int) -> Callable[[Image.Image], Image.Image]:
    """The middle of a picture, as large as it goes, size × size pixels."""

    def prepare(image: Image.Image) -> Image.Image:
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        return image.resize((size, size), Image.Resampling.LANCZOS, box=box)

    return prepare


def whole(size: int) -> Callable[[Image.Image], Image.Image]:
    """The whole of a picture, made square: a cut one would lack half of its sign."""
    return lambda image: image.resize((size, size), Image.Resampling.LANCZOS)


def some(count: int, of: int, name: str) -> list[int]:
    """Which of the pictures are taken, by chance."""
    return permutation(of, seed=0, name=name).tolist()[:count]


def take(pictures: Sequence[Picture], count: int, name: str) -> list[Picture]:
    """So many of the pictures, by chance."""
    return [pictures[i] for i in some(count, len(pictures), name)]


def distinct(pictures: Sequence[Picture]) -> list[Picture]:
    """Without files that are there twice."""
    return list({picture.blob: picture for picture in reversed(pictures)}.values())[::-1]


def alike(images: Sequence[Image.Image], most: int) -> NDArray[np.int64]:
    """A group for every picture: those whose outlines differ in at most `most` of 256 bits.

    Copies, crops and series of one thing must not be on both sides of a division.
    """
    small = [np.asarray(i.convert("L").resize((17, 16), Image.Resampling.BOX)) for i in images]
    bits = (np.diff(np.stack(small).astype(np.int16), axis=2) > 0).reshape(len(images), -1)
    signs = np.where(bits, 1.0, -1.0).astype(np.float32)
    group = np.arange(len(images))

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return int(i)

    for begin in range(0, len(images), 1000):
        apart = (signs.shape[1] - signs[begin : begin + 1000] @ signs.T) / 2
        for i, j in np.argwhere(apart <= most):
            a, b = root(begin + int(i)), root(int(j))
            group[max(a, b)] = min(a, b)
    return np.array([root(i) for i in range(len(images))])


def alike_within(
    images: list[Image.Image], labels: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """`alike` class by class, for things that differ in little else."""
    groups = np.empty(len(images), np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        groups[rows] = rows[alike([images[i] for i in rows], most)]
    return groups


def colours_apart(images: Sequence[Image.Image]) -> NDArray[np.float32]:
    """How much every two pictures differ, 12 × 12 pixels each: the root mean square of levels."""
    small = [np.asarray(i.resize((12, 12), Image.Resampling.BOX), np.float32) for i in images]
    rows = np.stack(small).reshape(len(images), -1)
    squares = (rows**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * rows @ rows.T
    return np.sqrt(np.maximum(apart, 0) / rows.shape[1])


def pack_classes(
    out: Path,
    name: str,
    source: Repository,
    pictures: Sequence[Picture],
    classes: Sequence[str],
    every: int,
    *,
    size: int,
    most: int,
    outline: int,
    shares: tuple[float, float],
) -> None:
    """NAME.npz, and other-NAME.npz of the classes that are left out: each fifth, if `every` is 5.

    Pictures of a class that look alike (`outline`, see `alike`) go to one part.
    """
    strange = classes[every - 1 :: every]
    known = [one for one in classes if one not in strange]
    print(f"{len(known)} {name}; left out: {', '.join(strange)}")
    kept, images = source.images([p for p in pictures if p.folder in known], square(size))
    labels = np.array([known.index(picture.folder) for picture in kept])
    groups = alike_within(images, labels, outline)
    print(f"{len(images)} pictures in {len(np.unique(groups))} groups")
    pack(out / f"{name}.npz", images, labels.tolist(), divide(groups, shares, name).tolist())
    others = take([p for p in pictures if p.folder in strange], most, f"other-{name}")
    pack(out / f"other-{name}.npz", source.images(others, square(size))[1])


def divide(groups: NDArray[np.int64], begin: tuple[float, float], name: str) -> NDArray[np.int64]:
    """A part for every picture, whole groups to each; `begin`: where parts 1 and 2 begin."""
    names, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = permutation(len(names), seed=0, name=name).numpy()
    before = np.empty(len(names))
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    return np.digitize(before / len(groups), begin)[at]


def pack(
    file: Path,
    images: Sequence[Image.Image],
    labels: Sequence[int] | None = None,
    parts: Sequence[int] | None = None,
) -> None:
    """Write a pack; without labels, all are 0."""
    data, at = [], [0]
    for image in images:
        held = io.BytesIO()
        image.save(held, "JPEG", quality=QUALITY)
        data.append(held.getvalue())
        at.append(at[-1] + len(data[-1]))
    arrays = {
        "bytes": np.frombuffer(b"".join(data), np.uint8),
        "off": np.array(at, np.int64),
        "y": np.array(labels if labels is not None else [0] * len(images), np.int64),
    }
    if parts is not None:
        arrays["part"] = np.array(parts, np.int64)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    counts = "" if parts is None else f", parts {np.bincount(parts).tolist()}"
    print(
        f"{file.name}: {len(images)} of {images[0].size[0]} pixels, {at[-1] / 1e6:.1f} MB{counts}"
    )


def pack_some(mirrors: Path, name: str, under: str, file: Path, *, size: int, most: int) -> None:
    """A pack of some of the pictures below a folder of a repository, without labels."""
    source = Repository.of(mirrors, name)
    found = take(source.pictures(under), most, file.stem)
    pack(file, source.images(found, square(size))[1])


def asked(about: str | None) -> tuple[Path, Path]:
    """The folders of clones and of packs, from the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--mirrors", type=Path, required=True, help="clones, as OWNER+NAME")
    parser.add_argument("--out", type=Path, required=True, help="where the packs go")
    given = parser.parse_args()
    return given.mirrors, given.out
