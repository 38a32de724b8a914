"""The packs of the task «sports»: photographs of sports, at 64 pixels.

karibays/Sports-Image-Classification (100 sports), umareddy123/Human_activity_recognition (what
people do otherwise), emanhamed/Houses-dataset (rooms), SimhadriSantosh/Coin-Classifier (coins),
wilzeviolin/aap (pills), vis-nlp/ChartQA (charts).
"""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from packing import (
    Picture,
    Repository,
    alike_within,
    asked,
    colours_apart,
    distinct,
    divide,
    pack,
    square,
    take,
)
from PIL import Image, ImageOps

SIZE, MOST = 64, 1000
SPORTS, LEFT_OUT = 40, 5  # the most frequent ones; every fifth of them, by name, stays out
SHARES = (0.69, 0.82)  # where validation and test begin
SAME = 72  # bits of 256: below, two pictures of a sport may be copies
SCENE = 26  # levels: below, they may be of one series
# In these people sit, talk or eat; the other actions are sports, or look like some.
ACTIONS = (
    "calling", "clapping", "drinking", "eating", "hugging", "laughing", "listening_to_music",
    "sitting", "sleeping", "texting", "using_laptop",
)  # fmt: skip
ROOMS = ("bathroom", "bedroom", "kitchen")  # the fourth picture shows the house


def in_later_part(
    images: list[Image.Image], labels: NDArray[np.int64], parts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which pictures a later part has too, or their series, as they are or mirrored."""
    found = np.zeros(len(images), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        own = [images[i] for i in rows]
        series = colours_apart([*own, *map(ImageOps.mirror, own)])[: len(rows)] < SCENE
        later = parts[rows][:, None] < np.tile(parts[rows], 2)
        found[rows] = (series & later).any(axis=1)
    return found


def own(mirrors: Path, out: Path) -> None:
    """The sports to learn, and those left out."""
    source = Repository.of(mirrors, "karibays/Sports-Image-Classification")
    pictures = distinct(source.pictures("data"))
    counts = Counter(picture.folder for picture in pictures)
    frequent = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:SPORTS])
    strange = frequent[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in frequent if name not in strange]
    print(f"{len(known)} sports: {', '.join(known)}; left out: {', '.join(strange)}")

    kept, images = source.images([p for p in pictures if p.folder in known], square(SIZE))
    labels = np.array([known.index(picture.folder) for picture in kept])
    groups = alike_within(images, labels, SAME)
    print(f"{len(images)} pictures in {len(np.unique(groups))} groups")
    parts = divide(groups, SHARES, "sports")
    rows = np.flatnonzero(~in_later_part(images, labels, parts))
    print(f"series in two parts, dropped: {len(images) - len(rows)}")
    pack(
        out / "sports.npz",
        [images[i] for i in rows],
        labels[rows].tolist(),
        parts[rows].tolist(),
    )
    others = take([p for p in pictures if p.folder in strange], MOST, "other-sports")
    pack(out / "other-sports.npz", source.images(others, square(SIZE))[1])


def actions(source: Repository) -> list[Picture]:
    """What people do otherwise: a table has what each picture shows."""
    table = csv.DictReader(source.text("Training_set.csv").splitlines())
    wanted = {Path(row["filename"]).name for row in table if row["label"] in ACTIONS}
    return [p for p in source.pictures("train") if p.path.name in wanted]


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    people = Repository.of(mirrors, "umareddy123/Human_activity_recognition")
    houses = Repository.of(mirrors, "emanhamed/Houses-dataset")
    money = Repository.of(mirrors, "SimhadriSantosh/Coin-Classifier")
    drugs = Repository.of(mirrors, "wilzeviolin/aap")
    drawn = Repository.of(mirrors, "vis-nlp/ChartQA")
    sets = {
        "actions": (people, actions(people)),
        "rooms": (houses, [p for p in houses.pictures() if p.path.stem.endswith(ROOMS)]),
        "coins": (money, money.pictures("data")),
        "pills": (drugs, drugs.pictures("train")),
        "charts": (drawn, drawn.pictures("ChartQA Dataset")),
    }
    for name, (source, pictures) in sets.items():
        found = take(distinct(pictures), MOST, name)
        pack(out / f"{name}.npz", source.images(found, square(SIZE))[1])


if __name__ == "__main__":
    main()
