"""Packs of birds: 32 species as ID, eight others and monkeys near, four sets far, 64 pixels.

Clones: DavidReveloLuna/Bird_Classification-, nikhildutta333/Monkey-Species-Classification,
jalpv1/best_art_works2, mayuri34/music-genre-classification, KomalChaudhari8/BRAIN_TUMOR_APP,
ardamavi/Sign-Language-Digits-Dataset.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from packing import Picture, Repository, alike, asked, pack, square, take, whole

from tulip_ood.numerics.random import permutation

SIZE, LIMIT = 64, 1000
ALIKE = 70  # of pairs so near, half show one bird twice
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
    found = species(repository.pictures("dataset/consolidated"))[: SPECIES + OTHERS]
    label = {of[0].folder: i for i, of in enumerate(found)}
    kept, images = repository.images([one for of in found for one in of], square(SIZE))
    labels = np.array([label[picture.folder] for picture in kept])
    groups = alike(images, ALIKE)
    own = np.flatnonzero(labels < SPECIES)
    part = whole(groups[own], SHARES, "birds")
    print(f"{len(own)} birds in {len(np.unique(groups[own]))} groups")
    pack(out / "birds.npz", [images[i] for i in own], labels[own].tolist(), part.tolist())
    # What looks like one of the 32 species may be one under a wrong name.
    others = np.flatnonzero((labels >= SPECIES) & ~np.isin(groups, groups[own]))
    chosen = others[permutation(len(others), seed=0, name="other-birds").numpy()[:LIMIT]]
    pack(out / "other-birds.npz", [images[i] for i in chosen])


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
