"""The packs of the task «cards»: playing cards of many decks, at 64 pixels.

hiroonwijekoon/pytorch-cnn-playing-cards-classifier (cards), Camerash/mahjong-dataset (tiles),
msiddhu/aptos-processed (retinas), loser564/Lung-Cancer-Prediction-Model (tissue),
siddhartamukherjee/NEU-DET-Steel-Surface-Defect-Detection (steel),
shubhankarm01/Weather-image-classification (weather).
"""

from pathlib import Path

from packing import Repository, asked, pack, pack_classes, pack_some, take, whole

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


def own(mirrors: Path, out: Path) -> None:
    """The cards to learn, and those left out."""
    source = Repository.of(mirrors, "hiroonwijekoon/pytorch-cnn-playing-cards-classifier")
    pictures = source.pictures("dataset")
    cards = sorted({picture.folder for picture in pictures})
    pack_classes(
        out, "cards", source, pictures, cards, LEFT_OUT,
        size=SIZE, most=MOST, outline=OUTLINE, shares=SHARES,
    )  # fmt: skip


def main() -> None:
    mirrors, out = asked(__doc__)
    own(mirrors, out)
    source = Repository.of(mirrors, "Camerash/mahjong-dataset")
    tiles = take(source.pictures("tiles-resized"), MOST, "tiles")
    # The whole tile, made square as the cards were.
    pack(out / "tiles.npz", source.images(tiles, whole(SIZE))[1])
    for name, (repository, under) in FAR.items():
        pack_some(mirrors, repository, under, out / f"{name}.npz", size=SIZE, most=MOST)


if __name__ == "__main__":
    main()
