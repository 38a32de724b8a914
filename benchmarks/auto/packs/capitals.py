"""The packs of the task «capitals»: capital letters out of photographs of streets, at 64 pixels.

rfstdh/100image (Chars74K), Callmewuxin/fish4konwledge (reef fish),
MotherHazker/ObjectClassification (fruit and vegetables), rgeirhos/texture-vs-shape (things in the
texture of others), muxspace/facial_expressions (portraits).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from packing import (
    Picture,
    Repository,
    asked,
    colours_apart,
    distinct,
    pack,
    some,
    square,
    take,
    whole,
)

SIZE, MOST = 64, 1000
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEFT_OUT = 5  # every fifth letter stays out
UNDER = "English/Img/GoodImg/Bmp"  # what its authors call bad shows the same signs again
FIRST, NUMERALS = 11, range(3, 11)  # folders: of A; of 2 to 9 (0 and 1 look like O and I)
STRIPES, BEGINS = 20, (15, 17)  # of the photographs; where validation and test begin
NEXT, SAME = 0.15, 28  # of the photographs, and levels: below both, letters of one sign
FAR = {
    "reef-fish": ("Callmewuxin/fish4konwledge", "fish_image"),
    "fruit": ("MotherHazker/ObjectClassification", "train"),
    "stylised": ("rgeirhos/texture-vs-shape", "stimuli/style-transfer-preprocessed-512"),
    "portraits": ("muxspace/facial_expressions", "images"),
}


def number(picture: Picture) -> int:
    """Of its folder, SampleNUMBER."""
    return int(picture.folder.removeprefix("Sample"))


def places(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where a picture is among those of its letter, in [0, 1).

    All letters are numbered in the order of the photographs, so letters of one sign are at about
    one place.
    """
    found = np.empty(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        found[rows] = np.arange(len(rows)) / len(rows)
    return found


def own(source: Repository, out: Path) -> None:
    """The letters to learn, and those left out."""
    pictures = [p for p in distinct(source.pictures(UNDER)) if number(p) >= FIRST]
    strange = LETTERS[LEFT_OUT - 1 :: LEFT_OUT]
    known = [letter for letter in LETTERS if letter not in strange]
    print(f"{len(known)} letters; left out: {', '.join(strange)}")
    chosen = [p for p in pictures if LETTERS[number(p) - FIRST] in known]
    kept, images = source.images(chosen, whole(SIZE))
    labels = np.array([known.index(LETTERS[number(picture) - FIRST]) for picture in kept])
    at = places(labels)
    rank = np.argsort(some(STRIPES, STRIPES, "stripes of capitals"))
    parts = np.digitize(rank[(at * STRIPES).astype(np.int64)], BEGINS)
    # A stripe's end may cut a series: of a sign that is in two parts, the later one keeps it.
    sign = (colours_apart(images) < SAME) & (abs(at[:, None] - at) < NEXT)
    rows = np.flatnonzero(~(sign & (parts[:, None] < parts)).any(axis=1))
    print(f"letters of signs in two parts, dropped: {len(images) - len(rows)}")
    pack(
        out / "capitals.npz",
        [images[i] for i in rows],
        labels[rows].tolist(),
        parts[rows].tolist(),
    )
    others = [p for p in pictures if LETTERS[number(p) - FIRST] in strange]
    others = take(others, MOST, "other-capitals")
    pack(out / "other-capitals.npz", source.images(others, whole(SIZE))[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    source = Repository.of(mirrors, "rfstdh/100image")
    own(source, out)
    numerals = [p for p in distinct(source.pictures(UNDER)) if number(p) in NUMERALS]
    numerals = take(numerals, MOST, "numerals")
    pack(out / "numerals.npz", source.images(numerals, whole(SIZE))[1])
    for name, (repository, under) in FAR.items():
        source = Repository.of(mirrors, repository)
        found = take(distinct(source.pictures(under)), MOST, name)
        pack(out / f"{name}.npz", source.images(found, square(SIZE))[1])


if __name__ == "__main__":
    main()
