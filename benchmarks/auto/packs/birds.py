"""Packs of birds: 32 species as ID, eight others and monkeys near, four sets far, 64 pixels.

Clones: DavidReveloLuna/Bird_Classification-, nikhildutta333/Monkey-Species-Classification,
jalpv1/best_art_works2, mayuri34/music-genre-classification, KomalChaudhari8/BRAIN_TUMOR_APP,
ardamavi/Sign-Language-Digits-Dataset.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from packing import Picture, Repository, alike, asked, divide, pack, square, take

SIZE, LIMIT = 64, 1000
ALIKE = 70  # most pairs of one species that are so near show one bird twice
SPECIES, OTHERS = 32, 8
SHARES = (0.67, 0.81)  # where validation and test begin
OUTSIDE = {
    "monkeys": ("nikhildutta333/Monkey-Species-Classification", ""),
    "paintings": ("jalpv1/best_art_works2", ""),
    "spectra": ("mayuri34/music-genre-classification", "img_data"),
    "brains": ("KomalChaudhari8/BRAIN_TUMOR_APP", "Training"),
    "hands": ("ardamavi/Sign-Language-Digits-Dataset", "Dataset"),
}


def species(pictures: list[Picture]) -> list[list[Picture]]:
    """The pictures of every species, the most frequent first."""
    found = defaultdict(list)
    for picture in pictures:
        found[picture.folder].append(picture)
    return [found[name] for name in sorted(found, key=lambda name: (-len(found[name]), name))]


def birds(mirrors: Path, out: Path) -> None:
    repository = Repository.of(mirrors, "DavidReveloLuna/Bird_Classification-")
    found = species(repository.pictures("dataset/consolidated"))
    of = [repository.images(pictures, square(SIZE))[1] for pictures in found[:SPECIES]]
    images = [image for each in of for image in each]
    labels = [label for label, each in enumerate(of) for _ in each]
    # Species by species: any bird before a clear sky looks like any other.
    groups = np.concatenate([alike(each, ALIKE) for each in of]) + len(images) * np.array(labels)
    part = divide(groups, SHARES, "birds")
    print(f"{len(images)} birds in {len(np.unique(groups))} groups")
    pack(out / "birds.npz", images, labels, part.tolist())
    others = [one for pictures in found[SPECIES : SPECIES + OTHERS] for one in pictures]
    _, images = repository.images(take(others, LIMIT, "other-birds"), square(SIZE))
    pack(out / "other-birds.npz", images)


def main() -> None:
    mirrors, out = asked(__doc__)
    birds(mirrors, out)
    for name, (source, under) in OUTSIDE.items():
        repository = Repository.of(mirrors, source)
        # A few cannot be read, so take some more.
        chosen = take(repository.pictures(under), LIMIT + 100, name)
        _, images = repository.images(chosen, square(SIZE))
        pack(out / f"{name}.npz", images[:LIMIT])


if __name__ == "__main__":
    main()
