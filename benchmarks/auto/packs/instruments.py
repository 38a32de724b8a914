"""The packs of the task «instruments»: pictures of musical instruments, at 64 pixels.

aizadaaskar/dl-homework (30 instruments), IvonaTau/ikea (household goods),
isi-mube/Cosmic-Compendium (galaxies), zae-bayern/elpv-dataset (solar cells),
spothq/cryptocurrency-icons (logos), yeyimilk/LLM-Vision-Marine-Animals (sea mammals).
"""

from pathlib import Path

import numpy as np
from packing import (
    Repository,
    alike_within,
    asked,
    distinct,
    divide,
    pack,
    pack_some,
    square,
    take,
)

SIZE, MOST = 64, 1000
LEFT_OUT = 7  # every seventh instrument, by name, stays out
SHARES = (0.68, 0.81)  # where validation and test begin
OUTLINE = 32  # bits of 256: below, two pictures of an instrument may be copies
FAR = {
    "galaxies": ("isi-mube/Cosmic-Compendium", "data/galaxies"),
    "solar-cells": ("zae-bayern/elpv-dataset", "src/elpv_dataset/data/images"),
    "logos": ("spothq/cryptocurrency-icons", "128/color"),
    "sea-mammals": ("yeyimilk/LLM-Vision-Marine-Animals", "data/images"),
}


def own(mirrors: Path, out: Path) -> None:
    """The instruments to learn, and those left out."""
    source = Repository.of(mirrors, "aizadaaskar/dl-homework")
    pictures = distinct(source.pictures())
    instruments = sorted({picture.folder for picture in pictures}, key=str.lower)
    strange = instruments[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in instruments if name not in strange]
    print(f"{len(known)} instruments; left out: {', '.join(strange)}")

    kept, images = source.images([p for p in pictures if p.folder in known], square(SIZE))
    labels = np.array([known.index(picture.folder) for picture in kept])
    groups = alike_within(images, labels, OUTLINE)
    print(f"{len(images)} pictures in {len(np.unique(groups))} groups")
    parts = divide(groups, SHARES, "instruments")
    pack(out / "instruments.npz", images, labels.tolist(), parts.tolist())

    others = take([p for p in pictures if p.folder in strange], MOST, "other-instruments")
    pack(out / "other-instruments.npz", source.images(others, square(SIZE))[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    source = Repository.of(mirrors, "IvonaTau/ikea")
    goods = take(distinct(source.pictures("images/objects")), MOST, "household")
    pack(out / "household.npz", source.images(goods, square(SIZE))[1])
    for name, (repository, under) in FAR.items():
        pack_some(mirrors, repository, under, out / f"{name}.npz", size=SIZE, most=MOST)


if __name__ == "__main__":
    main()
