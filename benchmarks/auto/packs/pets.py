"""The packs of the task «pets»: photographs of cats and dogs, by breed, at 64 pixels.

shlim2210/oxford-pets-datasets (Oxford-IIIT Pet, 37 breeds),
MachineLearning2020/Homework2-Caltech101 (wild animals, vehicles),
marcusklasson/GroceryStoreDataset (groceries), WilliamFlinchbaugh/Cloud-Type-Classifier (clouds),
abin24/Magnetic-tile-defect-datasets. (magnetic tiles).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from packing import (
    Picture,
    Repository,
    alike,
    alike_within,
    asked,
    colours_apart,
    distinct,
    divide,
    pack,
    square,
    take,
)
from PIL import Image

SIZE, MOST = 64, 950  # so many groceries are 3 MB
LEFT_OUT = 5  # every fifth breed, by name, stays out
SHARES = (0.70, 0.83)  # where validation and test begin
SAME, SITTING = 70, 34  # bits of 256, levels: below, two pictures of a breed may show one animal
COPY = 40  # bits: below, any two are copies
ROOM = 1.1  # times the animal's extent: some of what is around it
GRID = 128  # the outlines' resolution
UNDER = "oxford-pets-datasets/data"
WILD = (
    "Leopards", "beaver", "cougar_body", "cougar_face", "elephant", "gerenuk", "hedgehog",
    "kangaroo", "llama", "okapi", "panda", "platypus", "rhino",
)  # fmt: skip
VEHICLES = ("Motorbikes", "airplanes", "car_side", "ferry", "helicopter", "ketch", "schooner")
Box = tuple[int, int, int, int]


def breed(picture: Picture) -> str:
    """Its file is BREED_NUMBER.jpg."""
    return picture.path.stem.rpartition("_")[0]


def animal(outline: Image.Image) -> Image.Image:
    """White where the animal or its edge is: outlines have 1, 2 (around it) and 3."""
    seen = outline.convert("L").point([0 if value == 2 else 255 for value in range(256)])
    return seen.resize((GRID, GRID), Image.Resampling.BOX)


def around(box: Box) -> Callable[[Image.Image], Image.Image]:
    """A square around the animal, as far as the picture goes."""

    def prepare(image: Image.Image) -> Image.Image:
        width, height = image.size
        left, right = (at * width / GRID for at in box[::2])
        top, bottom = (at * height / GRID for at in box[1::2])
        side = min(ROOM * max(right - left, bottom - top), width, height)
        x = min(max((left + right - side) / 2, 0), width - side)
        y = min(max((top + bottom - side) / 2, 0), height - side)
        cut = (x, y, x + side, y + side)
        return image.resize((SIZE, SIZE), Image.Resampling.LANCZOS, box=cut)

    return prepare


def boxes(source: Repository) -> dict[str, Box]:
    """Where the animal is, by the picture's name."""
    given = [p for p in source.pictures(f"{UNDER}/annotations/trimaps") if p.path.name[0] != "."]
    kept, outlines = source.images(given, animal)
    found = {p.path.stem: outline.getbbox() for p, outline in zip(kept, outlines, strict=True)}
    return {name: box for name, box in found.items() if box is not None}


def own(mirrors: Path, out: Path) -> None:
    """The breeds to learn, and those left out."""
    source = Repository.of(mirrors, "shlim2210/oxford-pets-datasets")
    box = boxes(source)
    pictures = [p for p in distinct(source.pictures(f"{UNDER}/images")) if p.path.stem in box]
    breeds = sorted({breed(picture) for picture in pictures}, key=str.lower)
    strange = breeds[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in breeds if name not in strange]
    print(f"{len(known)} breeds; left out: {', '.join(strange)}")

    def cut(pictures: list[Picture]) -> tuple[list[Picture], list[Image.Image]]:
        kept, images = [], []
        for one in pictures:
            there, found = source.images([one], around(box[one.path.stem]))
            kept += there
            images += found
        return kept, images

    kept, images = cut([p for p in pictures if breed(p) in known])
    labels = np.array([known.index(breed(picture)) for picture in kept])
    copies = alike(images, COPY)
    # A picture that stands in two breeds belongs to neither.
    mixed = [group for group in np.unique(copies) if len(np.unique(labels[copies == group])) > 1]
    rows = np.flatnonzero(~np.isin(copies, mixed))
    print(f"pictures that two breeds have, dropped: {len(images) - len(rows)}")
    images, labels = [images[i] for i in rows], labels[rows]
    groups = alike_within(images, labels, SAME)
    print(f"{len(images)} pictures in {len(np.unique(groups))} groups")
    parts = divide(groups, SHARES, "pets")
    animal_again = (colours_apart(images) < SITTING) & (labels[:, None] == labels)
    rows = np.flatnonzero(~(animal_again & (parts[:, None] < parts)).any(axis=1))
    print(f"animals in two parts, dropped: {len(images) - len(rows)}")
    pack(
        out / "pets.npz",
        [images[i] for i in rows],
        labels[rows].tolist(),
        parts[rows].tolist(),
    )

    others = take([p for p in pictures if breed(p) in strange], MOST, "other-pets")
    _, found = cut(others)
    groups = alike([*images, *found], COPY)
    seen = np.isin(groups[len(images) :], groups[: len(images)])
    print(f"pictures that the known breeds have too, dropped: {seen.sum()}")
    pack(out / "other-pets.npz", [found[i] for i in np.flatnonzero(~seen)])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    things = Repository.of(mirrors, "MachineLearning2020/Homework2-Caltech101")
    shops = Repository.of(mirrors, "marcusklasson/GroceryStoreDataset")
    skies = Repository.of(mirrors, "WilliamFlinchbaugh/Cloud-Type-Classifier")
    tiles = Repository.of(mirrors, "abin24/Magnetic-tile-defect-datasets.")
    sets = {
        "wild-animals": (things, [p for p in things.pictures() if p.folder in WILD]),
        "vehicles": (things, [p for p in things.pictures() if p.folder in VEHICLES]),
        "groceries": (shops, shops.pictures("dataset")),
        "clouds": (skies, skies.pictures("Images")),
        # Its .png are masks of the defects.
        "magnetic-tiles": (tiles, [p for p in tiles.pictures() if p.path.suffix == ".jpg"]),
    }
    for name, (source, pictures) in sets.items():
        found = take(distinct(pictures), MOST, name)
        pack(out / f"{name}.npz", source.images(found, square(SIZE))[1])


if __name__ == "__main__":
    main()
