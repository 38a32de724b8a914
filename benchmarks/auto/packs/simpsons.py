"""The packs of the task «simpsons»: frames of a cartoon, by character, at 64 pixels.

alvarobartt/serving-tensorflow-models (The Simpsons, in its history), visual-layer/cartoons-dataset
(Tom and Jerry), cyizhuo/Stanford-Cars-dataset (cars), MachineLearning2020/Homework3-PACS
(sketches), TongxinWang0405/BMI702_project (ultrasound), anilsathyan7/indian-currency-classification
(banknotes).
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from packing import (
    Picture,
    Repository,
    alike,
    alike_within,
    asked,
    distinct,
    pack,
    pack_some,
    some,
    square,
    take,
)

SIZE, MOST = 64, 1000
REVISION = "99bed55e0926ac09da20da4dc906b71db5425da8"  # later ones hold no pictures
LEAST, LEFT_OUT = 200, 5  # frames of a character; every fifth of them, by name, stays out
BLOCK = 25  # neighbouring numbers are frames of one scene
BLOCKS = 20  # of a character, at most
SHARES = (0.70, 0.83)  # of its blocks: where validation and test begin
SAME = 60  # bits of 256: below, two frames of a character show one moment
FRAME = 40  # the same for any two: a figure before a clear wall looks like any other
FAR = {
    "cars": ("cyizhuo/Stanford-Cars-dataset", "test"),
    "sketches": ("MachineLearning2020/Homework3-PACS", "PACS/sketch"),
    "ultrasound": ("TongxinWang0405/BMI702_project", "Dataset_BUSI_with_GT"),
    "banknotes": ("anilsathyan7/indian-currency-classification", "data"),
}


def block(picture: Picture) -> int:
    """Which block a frame belongs to: its file is pic_NUMBER.jpg."""
    return int(picture.path.stem.split("_")[1]) // BLOCK


def blocks(name: str, pictures: list[Picture]) -> dict[int, int]:
    """Some blocks of a character, each with its part."""
    found = sorted({block(picture) for picture in pictures})
    order = some(BLOCKS, len(found), f"blocks of {name}")
    begins = [round(share * len(order)) for share in SHARES]
    return {found[i]: sum(at >= begin for begin in begins) for at, i in enumerate(order)}


def own(mirrors: Path, out: Path) -> None:
    """The characters to learn, and those left out."""
    source = Repository.of(mirrors, "alvarobartt/serving-tensorflow-models")
    of: dict[str, list[Picture]] = defaultdict(list)
    for picture in distinct(source.pictures("dataset/train", REVISION)):
        of[picture.folder].append(picture)
    frequent = sorted(name for name in of if len(of[name]) >= LEAST)
    strange = frequent[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in frequent if name not in strange]
    print(f"{len(known)} characters; left out: {', '.join(strange)}")

    part_of = {(name, i): part for name in known for i, part in blocks(name, of[name]).items()}
    chosen = [p for name in known for p in of[name] if (name, block(p)) in part_of]
    kept, images = source.images(chosen, square(SIZE))
    labels = np.array([known.index(picture.folder) for picture in kept])
    parts = np.array([part_of[picture.folder, block(picture)] for picture in kept])
    twice = np.zeros(len(kept), bool)
    for groups in (alike_within(images, labels, SAME), alike(images, FRAME)):
        for group in np.unique(groups):
            rows = groups == group
            twice |= rows & (len(np.unique(parts[rows])) > 1)
    rows = np.flatnonzero(~twice)
    print(f"moments in two parts, dropped: {twice.sum()}")
    pack(
        out / "simpsons.npz",
        [images[i] for i in rows],
        labels[rows].tolist(),
        parts[rows].tolist(),
    )

    others = take([p for name in strange for p in of[name]], MOST, "other-simpsons")
    _, found = source.images(others, square(SIZE))
    groups = alike([*images, *found], FRAME)
    seen = np.isin(groups[len(images) :], groups[: len(images)])
    print(f"frames that the known characters have too, dropped: {seen.sum()}")
    pack(out / "other-simpsons.npz", [found[i] for i in np.flatnonzero(~seen)])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    # The repository has frames of The Simpsons too, under other names.
    source = Repository.of(mirrors, "visual-layer/cartoons-dataset")
    frames = [p for p in source.pictures() if p.path.name.startswith("frame")]
    frames = take(frames, MOST, "tom-and-jerry")
    pack(out / "tom-and-jerry.npz", source.images(frames, square(SIZE))[1])
    for name, (repository, under) in FAR.items():
        pack_some(mirrors, repository, under, out / f"{name}.npz", size=SIZE, most=MOST)


if __name__ == "__main__":
    main()
