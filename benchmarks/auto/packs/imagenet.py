"""Packs for networks of ImageNet-1K: one image a class as ID, four sets as OOD, 260 pixels.

Clones: EliSchwartz/imagenet-sample-images, and those of `leaves.py`. The sets are called as those
of the leaves are, so they go to a folder of their own, `imagenet/`.
"""

from itertools import chain

from leaves import LEAVES, flowers, leaves, textures, xrays
from packing import Repository, asked, pack, square, take

SIZE, CLASSES = 260, 1000
COUNTS = {"leaves": 400, "flowers": 600, "textures": 600, "xrays": 400}
# ImageNet has bubbles and spider webs.
KNOWN_TEXTURES = ("bubbly", "cobwebbed")


def main() -> None:
    mirrors, out = asked(__doc__)
    repository = Repository.of(mirrors, "EliSchwartz/imagenet-sample-images")
    # nXXXXXXXX_name.JPEG: classes are in the order of these numbers.
    own = sorted(repository.pictures(), key=lambda one: one.path.name)
    assert len({one.path.name[:9] for one in own}) == len(own) == CLASSES
    label = {one.path: i for i, one in enumerate(own)}
    kept, images = repository.images(own, square(SIZE))
    pack(out / "imagenet" / "imagenet.npz", images, [label[one.path] for one in kept])
    repository = Repository.of(mirrors, LEAVES)
    of = leaves(repository)
    each = -(-COUNTS["leaves"] // len(of))  # as many of every class
    sets = {
        "leaves": (repository, list(chain(*(take(of[name], each, name) for name in of)))),
        "flowers": flowers(mirrors),
        "textures": textures(mirrors, KNOWN_TEXTURES),
        "xrays": xrays(mirrors),
    }
    for name, (source, pictures) in sets.items():
        # A few cannot be read, so take some more.
        _, found = source.images(take(pictures, COUNTS[name] + 20, name), square(SIZE))
        pack(out / "imagenet" / f"{name}.npz", found[: COUNTS[name]])


if __name__ == "__main__":
    main()
