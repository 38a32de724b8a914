"""The packs of the task «cards»: playing cards of many decks, at 64 pixels.

hiroonwijekoon/pytorch-cnn-playing-cards-classifier (cards), Camerash/mahjong-dataset (tiles),
msiddhu/aptos-processed (retinas), loser564/Lung-Cancer-Prediction-Model (tissue),
siddhartamukherjee/NEU-DET-Steel-Surface-Defect-Detection (steel),
shubhankarm01/Weather-image-classification (weather).
"""

from pathlib import Path

import numpy as np
from packing import Repository, alike_within, asked, divide, pack, pack_some, square, take
from PIL import Image

SIZE, MOST = 64, 1000
LEFT_OUT = 5  # every fifth card, by name, stays out: some of every suit
SHARES = (0.70, 0.83)  # where validation and test begin
OUTLINE = 28  # bits of 256: below, two pictures of a card may be copies
FAR = {
    "retinas": ("msiddhu/aptos-processed", "train_images"),
    "tissue": ("loser564/Lung-Cancer-Prediction-Model", "lung_image_sets"),
    "steel": ("siddhartamukherjee/NEU-DET-Steel-Surface-Defect-Detection", "IMAGES"),
    "weather": ("shubhankarm01/Weather-image-classification", "train"),
}


def whole(image: Image.Image) -> Image.Image:
    """The whole tile, made square as the cards were: a cut one lacks half of its sign."""
    return image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def own(mirrors: Path, out: Path) -> None:
    """The cards to learn, and those left out."""
    source = Repository.of(mirrors, "hiroonwijekoon/pytorch-cnn-playing-cards-classifier")
    pictures = source.pictures("dataset")
    cards = sorted({picture.folder for picture in pictures})
    strange = cards[LEFT_OUT - 1 :: LEFT_OUT]
    known = [card for card in cards if card not in strange]
    print(f"{len(known)} cards; left out: {', '.join(strange)}")

    kept, images = source.images([p for p in pictures if p.folder in known], square(SIZE))
    labels = np.array([known.index(picture.folder) for picture in kept])
    parts = divide(alike_within(images, labels, OUTLINE), SHARES, "cards")
    pack(out / "cards.npz", images, labels.tolist(), parts.tolist())

    others = take([p for p in pictures if p.folder in strange], MOST, "other-cards")
    pack(out / "other-cards.npz", source.images(others, square(SIZE))[1])


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    source = Repository.of(mirrors, "Camerash/mahjong-dataset")
    tiles = take(source.pictures("tiles-resized"), MOST, "tiles")
    pack(out / "tiles.npz", source.images(tiles, whole)[1])
    for name, (repository, under) in FAR.items():
        pack_some(mirrors, repository, under, out / f"{name}.npz", size=SIZE, most=MOST)


if __name__ == "__main__":
    main()
