"""The packs of the task «hiragana»: Japanese letters written by hand, at 64 pixels.

BCS-01/Hiragana-Character-Recognition (ETL8B, 46 letters), jamesnogra/CNNBaybayin (Philippine
letters), PerceptiLabs/movie_genre (film posters), PerceptiLabs/RetinalOCT (sections of retinas),
PerceptiLabs/fabric_stain (fabrics), JamesPiggott/Ancient-Language-Decipherer (hieroglyphs, in its
history).
"""

from pathlib import Path

import numpy as np
from packing import Picture, Repository, asked, distinct, divide, pack, square, take, whole
from PIL import Image

SIZE, MOST = 64, 1000
LEFT_OUT = 5  # every fifth letter, by name, stays out
SHARES = (0.69, 0.82)  # where validation and test begin
WRITERS = 160  # wrote each letter, always in the same order
INK = 128  # levels: below, it is ink
# Some write these as others write u, tsu and ro.
LIKE_HIRAGANA = ("o_u", "w", "wa", "we_wi", "wo_wu")
CARVED = "f037b809d439aa12f8fadc48b07f843d8d35baff"  # the last revision with the hieroglyphs


def ink(image: Image.Image) -> Image.Image:
    """Black on white and nothing between, or the smaller drawings would be the softer ones."""
    grey = whole(SIZE)(image).convert("L")
    return grey.point([0 if level < INK else 255 for level in range(256)]).convert("RGB")


def writer(picture: Picture) -> int:
    """Its file is ETL8B2_NUMBER.png, or ETL8B2C2_NUMBER_CODE.png."""
    return int(picture.path.stem.split("_")[1]) % WRITERS


def own(mirrors: Path, out: Path) -> None:
    """The letters to learn, and those left out."""
    source = Repository.of(mirrors, "BCS-01/Hiragana-Character-Recognition")
    pictures = distinct(source.pictures("Database/Hiragana/ETL8B2C1"))
    letters = sorted({picture.folder for picture in pictures})
    strange = letters[LEFT_OUT - 1 :: LEFT_OUT]
    known = [name for name in letters if name not in strange]
    print(f"{len(known)} letters: {', '.join(known)}; left out: {', '.join(strange)}")

    kept, images = source.images([p for p in pictures if p.folder in known], ink)
    labels = [known.index(picture.folder) for picture in kept]
    writers = np.array([writer(picture) for picture in kept])
    print(f"{len(images)} pictures by {len(np.unique(writers))} writers")
    parts = divide(writers, SHARES, "hiragana")
    pack(out / "hiragana.npz", images, labels, parts.tolist())
    others = take([p for p in pictures if p.folder in strange], MOST, "other-hiragana")
    pack(out / "other-hiragana.npz", source.images(others, ink)[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    drawn = Repository.of(mirrors, "jamesnogra/CNNBaybayin")
    films = Repository.of(mirrors, "PerceptiLabs/movie_genre")
    scans = Repository.of(mirrors, "PerceptiLabs/RetinalOCT")
    cloths = Repository.of(mirrors, "PerceptiLabs/fabric_stain")
    walls = Repository.of(mirrors, "JamesPiggott/Ancient-Language-Decipherer")
    # Its files are LETTER.CODE-WRITER.jpg.
    letters = [
        p for p in drawn.pictures("train_jpg") if p.path.name.split(".")[0] not in LIKE_HIRAGANA
    ]
    signs = walls.pictures("data/Dataset/Manual/Preprocessed", CARVED)
    cut = square(SIZE)
    sets = {
        "baybayin": (drawn, letters, ink),
        "posters": (films, films.pictures("posters"), cut),
        "retina-sections": (scans, scans.pictures("data/train"), cut),
        "fabrics": (cloths, cloths.pictures("data/images"), cut),
        "hieroglyphs": (walls, signs, whole(SIZE)),
    }
    for name, (source, pictures, prepare) in sets.items():
        found = take(distinct(pictures), MOST, name)
        pack(out / f"{name}.npz", source.images(found, prepare)[1])


if __name__ == "__main__":
    main()
