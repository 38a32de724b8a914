"""The packs of the task «instruments»: pictures of musical instruments, at 64 pixels.

aizadaaskar/dl-homework (30 instruments), IvonaTau/ikea (household goods),
isi-mube/Cosmic-Compendium (galaxies), zae-bayern/elpv-dataset (solar cells),
spothq/cryptocurrency-icons (logos), yeyimilk/LLM-Vision-Marine-Animals (sea mammals).
"""

from pathlib import Path

from packing import Repository, asked, distinct, pack, pack_classes, pack_some, square, take

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
    pack_classes(
        out, "instruments", source, pictures, instruments, LEFT_OUT,
        size=SIZE, most=MOST, outline=OUTLINE, shares=SHARES,
    )  # fmt: skip


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
