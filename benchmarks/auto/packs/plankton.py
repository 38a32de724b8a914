"""The packs of the task «plankton»: silhouettes of what drifts in the sea, at 64 pixels.

atthom/pfe_plankton_classif (plankton, by kind),
jaylebakken/Applied_Computational_Homology_On_Organic_Objects_JayL_BenC (POLLEN73S, pollen),
zzzDavid/ICDAR-2019-SROIE (receipts), tangsanli5201/DeepPCB (circuit boards),
Felixned/BiometricSystems (MMU, eyes), ViniciusSimm/Colo-Retal-Induscon2023 (Kvasir-SEG,
endoscopy).
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from packing import Picture, Repository, asked, distinct, divide, pack, square, take
from PIL import Image

SIZE, MOST = 64, 1000
A_KIND, LEFT_OUT = 170, 5  # of each kind that has so many; every fifth of them, by name, stays out
NO_KIND = ("artifacts", "other", "unknown")  # what nobody could name is in these folders
SHARES = (0.69, 0.82)  # where validation and test begin
SAME = 0.95  # of two silhouettes' correlation: above, they may be of one animal
SMALL = 32  # pixels: their resolution there
DARK = 0.05  # of a circuit board's piece: with less it is empty
POLLEN = "jaylebakken/Applied_Computational_Homology_On_Organic_Objects_JayL_BenC"


def on_white(image: Image.Image) -> Image.Image:
    """The whole of a picture on a white square: cut or stretched, worms look like one another."""
    side = max(image.size)
    wide = Image.new("RGB", (side, side), "white")
    wide.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return wide.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def grey(image: Image.Image) -> Image.Image:
    """Without its stain, which plankton has not."""
    return square(SIZE)(image.convert("L").convert("RGB"))


def dark(image: Image.Image) -> float:
    """How much of it."""
    return float((np.asarray(image.convert("L")) < 128).mean())


def in_later_part(
    images: list[Image.Image], labels: NDArray[np.int64], parts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which pictures look like one of their kind in a later part.

    Outlines as in `alike` do not tell: most of every picture is plain white.
    """
    small = [i.convert("L").resize((SMALL, SMALL), Image.Resampling.BOX) for i in images]
    ink = np.stack([np.asarray(i, np.float32).ravel() for i in small])
    ink -= ink.mean(axis=1, keepdims=True)
    ink /= np.linalg.norm(ink, axis=1, keepdims=True).clip(1)
    found = np.zeros(len(images), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        later = parts[rows][:, None] < parts[rows]
        found[rows] = ((ink[rows] @ ink[rows].T > SAME) & later).any(axis=1)
    return found


def own(source: Repository, out: Path) -> None:
    """The kinds to learn, and those left out."""
    of: dict[str, list[Picture]] = defaultdict(list)
    for picture in distinct(source.pictures("Dataset/train")):
        of[picture.folder].append(picture)
    named = [name for name in sorted(of) if not any(word in name for word in NO_KIND)]
    kinds = [name for name in named if len(of[name]) >= A_KIND]
    strange = kinds[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in kinds if name not in strange]
    print(f"{len(known)} kinds: {', '.join(known)}; left out: {', '.join(strange)}")

    chosen = [p for name in known for p in take(of[name], A_KIND, name)]
    kept, images = source.images(chosen, on_white)
    labels = np.array([known.index(picture.folder) for picture in kept])
    parts = divide(np.arange(len(images)), SHARES, "plankton")
    rows = np.flatnonzero(~in_later_part(images, labels, parts))
    print(f"in two parts, dropped: {len(images) - len(rows)} of {len(images)}")
    pack(
        out / "plankton.npz",
        [images[i] for i in rows],
        labels[rows].tolist(),
        parts[rows].tolist(),
    )
    others = [p for name in strange for p in take(of[name], A_KIND, name)]
    others = take(others, MOST, "other-plankton")
    pack(out / "other-plankton.npz", source.images(others, on_white)[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(Repository.of(mirrors, "atthom/pfe_plankton_classif"), out)
    grains = Repository.of(mirrors, POLLEN)
    chosen = take(distinct(grains.pictures("Dataset/POLLEN73S")), MOST, "pollen")
    pack(out / "pollen.npz", grains.images(chosen, grey)[1])
    boards = Repository.of(mirrors, "tangsanli5201/DeepPCB")
    # The others are what each should look like.
    pieces = [p for p in boards.pictures("PCBData") if p.path.stem.endswith("_test")]
    images = boards.images(take(distinct(pieces), len(pieces), "circuit-boards"), square(SIZE))[1]
    pack(out / "circuit-boards.npz", [i for i in images if dark(i) >= DARK][:MOST])
    for name, repository, under in (
        ("receipts", "zzzDavid/ICDAR-2019-SROIE", "data/img"),
        ("eyes", "Felixned/BiometricSystems", "MMU-Iris-Database"),
        ("endoscopy", "ViniciusSimm/Colo-Retal-Induscon2023", "datasets/Kvasir-SEG/images"),
    ):
        source = Repository.of(mirrors, repository)
        chosen = take(distinct(source.pictures(under)), MOST, name)
        pack(out / f"{name}.npz", source.images(chosen, square(SIZE))[1])


if __name__ == "__main__":
    main()
