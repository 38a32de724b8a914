"""The packs of the task «butterflies»: photographs of butterflies and moths, at 64 pixels.

pilicorredor/inteligencia (100 species of butterflies and moths), YuKiAndrew/Pest_Control
(insects), antoncoding/Deep_Learning_GAN (anime), mmalek06/bounding-box-detection-ham1000 (lesions),
congduytran12/Trash-Classification- (waste), AhmedFakhry47/Captcha-Dataset (captchas).
"""

from collections import Counter
from pathlib import Path

from packing import Picture, Repository, alike, asked, divide, pack, pack_some, square, take

SIZE, MOST = 64, 1000
SPECIES, LEFT_OUT = 60, 5  # the most frequent ones; every fifth of them, by name, stays out
SHARES = (0.70, 0.83)  # where validation and test begin
OUTLINE = 44  # bits of 256: below, two pictures may show one animal
INSECTS = ("ants", "bees", "beetle", "earwig", "grasshopper", "wasp", "weevil")  # no moths
FAR = {
    "anime": ("antoncoding/Deep_Learning_GAN", "faces"),
    "lesions": ("mmalek06/bounding-box-detection-ham1000", "data/images"),
    "waste": ("congduytran12/Trash-Classification-", "dataset-resized"),
    "captchas": ("AhmedFakhry47/Captcha-Dataset", "data"),
}


def species(picture: Picture) -> str:
    """Its folder; one species is not written alike everywhere."""
    return picture.folder.upper().strip()


def own(mirrors: Path, out: Path) -> None:
    """The species to learn, and those left out."""
    source = Repository.of(mirrors, "pilicorredor/inteligencia")
    pictures = source.pictures()
    counts = Counter(species(picture) for picture in pictures)
    frequent = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:SPECIES])
    strange = frequent[::LEFT_OUT]
    known = [name for name in frequent if name not in strange]
    print(f"{len(known)} species; left out: {', '.join(strange)}")

    kept, images = source.images([p for p in pictures if species(p) in known], square(SIZE))
    parts = divide(alike(images, OUTLINE), SHARES, "butterflies")
    labels = [known.index(species(picture)) for picture in kept]
    pack(out / "butterflies.npz", images, labels, parts.tolist())

    others = take([p for p in pictures if species(p) in strange], MOST, "other-butterflies")
    pack(out / "other-butterflies.npz", source.images(others, square(SIZE))[1])


def insects(mirrors: Path, out: Path) -> None:
    """Other insects, of another source."""
    source = Repository.of(mirrors, "YuKiAndrew/Pest_Control")
    pictures = source.pictures("kaggle/input/agricultural-pests-image-dataset/archive")
    found = take([p for p in pictures if p.folder in INSECTS], MOST, "insects")
    pack(out / "insects.npz", source.images(found, square(SIZE))[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    insects(mirrors, out)
    for name, (repository, under) in FAR.items():
        pack_some(mirrors, repository, under, out / f"{name}.npz", size=SIZE, most=MOST)


if __name__ == "__main__":
    main()
