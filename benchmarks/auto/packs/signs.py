"""Packs of the task `signs`, from clones of

hergerr/traffic-sign-recognition (GTSRB), RoggerTan/Traffic-Sign-Recognizer (BelgiumTSC),
Gandolier/genai_food101_repo, Shenggan/BCCD_Dataset, dalelane/pokemon-images-dataset and
mhamas/road-extraction-from-aerial-images (with its history).
"""

import csv
from collections import defaultdict
from pathlib import Path

from packing import Picture, Repository, asked, distinct, pack, some, square, take
from PIL import Image

SIZE, MOST, TESTED = 48, 1000, 3000
LEFT_OUT = range(4, 43, 5)  # of GTSRB's 43 classes
# BelgiumTSC's classes that are not among GTSRB's and do not resemble one (by eye): no warnings
# of bends, humps, narrows, animals or works, no speed limits, no arrows on blue discs, and so on.
BELGIAN = (12, 18, 20, 23, 24, 26, 27, 29, 30, 33, *range(38, 61))
PHOTOGRAPHS = "2be77592e1e32c6ac2d803f37007183740d2928e"  # later revisions lack them, or turned


def main() -> None:
    """Make all packs of the task."""
    mirrors, out = asked(__doc__)
    german(Repository.of(mirrors, "hergerr/traffic-sign-recognition"), out)
    belgian(Repository.of(mirrors, "RoggerTan/Traffic-Sign-Recognizer"), out)
    food = Repository.of(mirrors, "Gandolier/genai_food101_repo")
    plain(food, take(distinct(food.pictures("data/train")), MOST, "food"), out / "food.npz")
    drawn = Repository.of(mirrors, "dalelane/pokemon-images-dataset")
    # One of two types lies in two folders.
    plain(drawn, distinct(drawn.pictures("images")), out / "cartoons.npz")
    smears = Repository.of(mirrors, "Shenggan/BCCD_Dataset")
    _, wide = smears.images(smears.pictures("BCCD/JPEGImages"), lambda image: image)
    pack(out / "blood.npz", [half for image in wide for half in tiles(image, 2, 1)])
    aerial(Repository.of(mirrors, "mhamas/road-extraction-from-aerial-images"), out)


def german(signs: Repository, out: Path) -> None:
    """GTSRB: the task's own pictures, and those of the classes left out."""
    number = {k: i for i, k in enumerate(k for k in range(43) if k not in LEFT_OUT)}
    tracks: dict[int, dict[str, list[Picture]]] = defaultdict(lambda: defaultdict(list))
    for picture in signs.pictures("GTSRB/Final_Training/Images"):
        tracks[int(picture.folder)][picture.path.stem.split("_")[0]].append(picture)
    chosen: list[tuple[Picture, int, int]] = []
    counts = [0, 0]
    for k, label in number.items():
        films = list(tracks[k].values())
        for at, i in enumerate(some(len(films), len(films), f"tracks of sign {k}")):
            film, part = films[i], int(2 * at >= len(films))
            counts[part] += 1
            # Neighbouring frames are nearly the same: every other one is enough to learn from.
            kept = (
                [film[j] for j in some(1, len(film), f"frame of {k} {i}")] if part else film[1::2]
            )
            chosen += [(picture, label, part) for picture in kept]
    print(f"tracks to train on, to calibrate: {counts}")

    listed = signs.text("GTSRB/Final_Test/GT-final_test.csv").splitlines()
    classes = {
        row["Filename"]: int(row["ClassId"]) for row in csv.DictReader(listed, delimiter=";")
    }
    test = signs.pictures("GTSRB/Final_Test/Images")
    own = [picture for picture in test if classes[picture.path.name] in number]
    chosen += [(p, number[classes[p.path.name]], 2) for p in take(own, TESTED, "tested signs")]
    labels = {picture.path: (label, part) for picture, label, part in chosen}
    there, images = signs.images([picture for picture, _, _ in chosen], square(SIZE))
    found = [labels[picture.path] for picture in there]
    pack(out / "signs.npz", images, [label for label, _ in found], [part for _, part in found])
    others = [picture for picture in test if classes[picture.path.name] in LEFT_OUT]
    plain(signs, take(others, MOST, "other signs"), out / "other-signs.npz")


def belgian(signs: Repository, out: Path) -> None:
    """BelgiumTSC, as its authors gave it: the repository holds copies of another format, too."""
    folder = "TrafficSignRecognizer/TrafficSignRecognizer.API/wwwroot/DataSets"
    given = [picture for picture in signs.pictures(folder) if picture.path.suffix == ".ppm"]
    other = [picture for picture in given if int(picture.path.parts[5]) in BELGIAN]
    plain(signs, take(other, MOST, "belgian signs"), out / "belgian-signs.npz")


def aerial(roads: Repository, out: Path) -> None:
    """Tiles of about 200 pixels: four of a photograph to train on, nine of a larger one to test."""
    found = []
    for folder in ("data/training/images", "data/test_set"):
        _, images = roads.images(roads.pictures(folder, PHOTOGRAPHS), lambda image: image)
        for image in images:
            across = round(image.width / 200)
            found += tiles(image, across, across)
    pack(out / "aerial.npz", found)


def plain(source: Repository, pictures: list[Picture], file: Path) -> None:
    """A pack of whole pictures, without labels."""
    pack(file, source.images(pictures, square(SIZE))[1])


def tiles(image: Image.Image, across: int, down: int) -> list[Image.Image]:
    """A picture in pieces."""
    width, height = image.width // across, image.height // down
    corners = [(x * width, y * height) for y in range(down) for x in range(across)]
    return [square(SIZE)(image.crop((x, y, x + width, y + height))) for x, y in corners]


if __name__ == "__main__":
    main()
