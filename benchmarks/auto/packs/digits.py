"""What the digits need: MNIST's test images, notMNIST's letters, Omniglot's characters.

Clones: kelas/mnist, davidflanagan/notMNIST-to-MNIST, brendenlake/omniglot. The grey photographs
beside them are those of the CIFAR tasks.
"""

import gzip
import io
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from packing import Repository, asked

SIDE = 28
ALPHABETS = ("images_background_small1", "images_background_small2")
DIGITS_TOO = "Latin"  # O, I and Z are digits as well


def images(repository: Repository) -> NDArray[np.uint8]:
    """The test images of a repository in MNIST's format, [N, 28, 28]."""
    data = gzip.decompress(repository.file("t10k-images-idx3-ubyte.gz"))
    return np.frombuffer(data, np.uint8, offset=16).reshape(-1, SIDE, SIDE)


def labels(repository: Repository) -> NDArray[np.int64]:
    data = gzip.decompress(repository.file("t10k-labels-idx1-ubyte.gz"))
    return np.frombuffer(data, np.uint8, offset=8).astype(np.int64)


def characters(repository: Repository, file: Path) -> None:
    """The two small sets of alphabets in one archive, without what is there twice."""
    found: dict[PurePosixPath, bytes] = {}
    for name in ALPHABETS:
        with zipfile.ZipFile(io.BytesIO(repository.file(f"python/{name}.zip"))) as archive:
            for inside in archive.namelist():
                path = PurePosixPath(*PurePosixPath(inside).parts[1:])
                if path.suffix == ".png" and path.parts[0] != DIGITS_TOO:
                    found[path] = archive.read(inside)
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(found):
            # A date of its own for every file would make another archive each time.
            archive.writestr(zipfile.ZipInfo(str(path)), found[path])
    alphabets = sorted({path.parts[0] for path in found})
    print(f"{file.name}: {len(found)} characters of {', '.join(alphabets)}")


def main() -> None:
    mirrors, out = asked(__doc__)
    out.mkdir(parents=True, exist_ok=True)
    for name, source in (("digits", "kelas/mnist"), ("letters", "davidflanagan/notMNIST-to-MNIST")):
        repository = Repository.of(mirrors, source)
        x, y = images(repository), labels(repository)
        np.savez_compressed(out / f"{name}.npz", x=x, y=y)
        print(f"{name}.npz: {len(x)} of {SIDE} pixels, {np.bincount(y).tolist()} of each class")
    characters(Repository.of(mirrors, "brendenlake/omniglot"), out / "omniglot.zip")


if __name__ == "__main__":
    main()
