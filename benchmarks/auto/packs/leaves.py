"""Packs of leaves: 29 classes of seven crops as ID, seven other crops near, four sets far.

Clones: ai-agriculture-circuits-and-systems/plant_village (PlantVillage, with its photographs that
show no leaf), pan8915/DeepTexture (ten classes of DTD), 3ba2ii/Flower-Classifier (Oxford's
flowers), ieee8023/covid-chestxray-dataset.
"""

import csv
import io
import json
from collections import defaultdict
from pathlib import Path

from packing import Picture, Repository, alike, asked, divide, pack, square, take

SIZE, LIMIT, A_CLASS = 64, 1000, 400
ALIKE, SHARES = 55, (0.8, 0.88)  # where validation and test begin
LEAVES = "ai-agriculture-circuits-and-systems/plant_village"
UNDER = "Plant_leave_diseases_dataset_without_augmentation"
NO_LEAVES = "Background_without_leaves"
CROPS = ("Apple", "Corn", "Grape", "Pepper,_bell", "Potato", "Strawberry", "Tomato")
# ImageNet has daisies, lady's slippers, artichokes and cardoons, and these look like them.
KNOWN_FLOWERS = ("daisy", "osteospermum", "pocket orchid", "artichoke", "thistle")


def leaves(repository: Repository) -> dict[str, list[Picture]]:
    """The pictures of every class, by name."""
    found = defaultdict(list)
    for picture in repository.pictures(UNDER):
        if picture.folder != NO_LEAVES:
            found[picture.folder].append(picture)
    return dict(sorted(found.items()))


def textures(mirrors: Path, without: tuple[str, ...] = ()) -> tuple[Repository, list[Picture]]:
    repository = Repository.of(mirrors, "pan8915/DeepTexture")
    found = repository.pictures("images")
    return repository, [one for one in found if one.folder not in without]


def flowers(mirrors: Path) -> tuple[Repository, list[Picture]]:
    """Those that are no class of ImageNet."""
    repository = Repository.of(mirrors, "3ba2ii/Flower-Classifier")
    names = json.loads(repository.file("cat_to_name.json"))
    known = {k for k, name in names.items() if any(word in name for word in KNOWN_FLOWERS)}
    found = repository.pictures("flowers/train")
    return repository, [one for one in found if one.folder not in known]


def xrays(mirrors: Path) -> tuple[Repository, list[Picture]]:
    """Without the CT slices that are among them."""
    repository = Repository.of(mirrors, "ieee8023/covid-chestxray-dataset")
    table = csv.DictReader(io.StringIO(repository.file("metadata.csv").decode()))
    wanted = {row["filename"] for row in table if row["modality"] == "X-ray"}
    found = repository.pictures("images")
    return repository, [one for one in found if one.path.name in wanted]


def main() -> None:
    mirrors, out = asked(__doc__)
    repository = Repository.of(mirrors, LEAVES)
    of = leaves(repository)
    own = [name for name in of if name.startswith(CROPS)]
    label = {name: i for i, name in enumerate(own)}
    chosen = [one for name in own for one in take(of[name], A_CLASS, name)]
    kept, images = repository.images(chosen, square(SIZE))
    # Some leaves were photographed twice.
    groups = alike(images, ALIKE)
    part = divide(groups, SHARES, "leaves")
    print(f"{len(images)} leaves of {len(own)} classes in {len(set(groups.tolist()))} groups")
    pack(out / "leaves.npz", images, [label[one.folder] for one in kept], part.tolist())
    # As many of each class: oranges and soybeans would be more than half of all.
    others = [name for name in of if name not in label]
    each = -(-LIMIT // len(others))
    chosen = [one for name in others for one in take(of[name], each, name)]
    sets = {
        "other-crops": (repository, chosen),
        "textures": textures(mirrors),
        "flowers": flowers(mirrors),
        "xrays": xrays(mirrors),
        "photographs": (repository, repository.pictures(f"{UNDER}/{NO_LEAVES}")),
    }
    for name, (source, pictures) in sets.items():
        _, images = source.images(take(pictures, LIMIT, name), square(SIZE))
        pack(out / f"{name}.npz", images)


if __name__ == "__main__":
    main()
