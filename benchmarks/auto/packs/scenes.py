"""Packs of the task `scenes`, from clones of

zlima/testtensor (AID), palewithout/RSSCN7, RecepTahirGunlu/Duygu-Tanima (FER),
keshav1245/Image-Classification-using-AlexNet-CNN-Model (Intel's scenes), googlefonts/noto-emoji
and alexeygrigorev/clothing-dataset-small.
"""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from packing import Picture, Repository, alike, asked, distinct, pack, some, square, take
from PIL import Image

SIZE, MOST, FIELDS = 64, 1000, 275
BLOCK = 20  # neighbouring file numbers show neighbouring places
PARTS = (0.7, 0.82)  # of a class's blocks: where validation and test begin
SAME = 30  # of 256 bits: views that differ less show one place
# Their places are among the pictures to train on or to calibrate, shifted or in another season,
# which `alike` cannot see: found by phase correlation and by eye, for this very division.
SEEN = ("park_120", "church_215", "church_8", "river_121", "school_21", "viaduct_397")
LEFT_OUT = ("Airport", "Center", "Farmland", "Mountain", "Port", "SparseResidential")
TONED = re.compile("1f3f[b-f]|1f1[ef]")  # emoji that differ in a skin's tone; flags


def main() -> None:
    """Make all packs of the task."""
    mirrors, out = asked(__doc__)
    aerial(Repository.of(mirrors, "zlima/testtensor"), out)
    fields(Repository.of(mirrors, "palewithout/RSSCN7"), out)
    ground = Repository.of(mirrors, "keshav1245/Image-Classification-using-AlexNet-CNN-Model")
    towns = [picture for picture in ground.pictures() if picture.folder in ("street", "buildings")]
    plain(ground, towns, out / "streets.npz")
    people = Repository.of(mirrors, "RecepTahirGunlu/Duygu-Tanima")
    # Its owner added changed copies, NAME.jpg0.jpg and so on.
    faces = [picture for picture in people.pictures() if ".jpg" not in picture.path.stem]
    plain(people, faces, out / "faces.npz")
    drawn = Repository.of(mirrors, "googlefonts/noto-emoji")
    emoji = [p for p in drawn.pictures("png/128") if not TONED.search(p.path.name)]
    plain(drawn, emoji, out / "emoji.npz")
    worn = Repository.of(mirrors, "alexeygrigorev/clothing-dataset-small")
    plain(worn, worn.pictures(), out / "clothes.npz")


def aerial(scenes: Repository, out: Path) -> None:
    """AID: the task's own pictures, and those of the classes left out."""
    classes: dict[str, list[Picture]] = defaultdict(list)
    for picture in scenes.pictures("AID"):
        classes[picture.folder].append(picture)
    others = [picture for name in LEFT_OUT for picture in classes.pop(name)]
    part_of = {}
    for name, pictures in classes.items():
        blocks = sorted({block(picture) for picture in pictures})
        order = some(len(blocks), len(blocks), f"blocks of {name}")
        begins = [round(share * len(blocks)) for share in PARTS]
        for at, i in enumerate(order):
            part_of[name, blocks[i]] = sum(at >= begin for begin in begins)
    own = [picture for pictures in classes.values() for picture in pictures]
    own, images = scenes.images(own, square(SIZE))
    parts = np.array([part_of[picture.folder, block(picture)] for picture in own])
    groups = alike(images, SAME)
    found = {group: set(parts[groups == group]) for group in set(groups)}
    kept = [i for i, group in enumerate(groups) if len(found[group]) == 1]
    kept = [i for i in kept if own[i].path.stem not in SEEN]
    print(f"views in two parts, dropped: {len(own) - len(kept)}")
    number = {name: i for i, name in enumerate(classes)}
    pack(
        out / "scenes.npz",
        [images[i] for i in kept],
        [number[own[i].folder] for i in kept],
        [int(parts[i]) for i in kept],
    )
    plain(scenes, others, out / "other-scenes.npz")


def block(picture: Picture) -> int:
    """Which block a picture belongs to: its file is NAME_NUMBER.jpg, from 1."""
    return (int(picture.path.stem.split("_")[1]) - 1) // BLOCK


def fields(places: Repository, out: Path) -> None:
    """RSSCN7's fields with the widest spread of colours: a plain one could be a meadow."""
    _, images = places.images(places.pictures("bField"), square(SIZE))
    order = np.argsort([-spread(image) for image in images], kind="stable")
    pack(out / "fields.npz", [images[i] for i in sorted(order[:FIELDS])])


def spread(image: Image.Image) -> float:
    """How much the colours of a picture differ from place to place."""
    return float(np.asarray(image, np.float64).std(axis=(0, 1)).mean())


def plain(source: Repository, pictures: list[Picture], file: Path) -> None:
    """A pack of some of the pictures, without labels."""
    some_of_them = take(distinct(pictures), MOST, file.stem)
    pack(file, source.images(some_of_them, square(SIZE))[1])


if __name__ == "__main__":
    main()
