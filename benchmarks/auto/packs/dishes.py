"""The packs of the task «dishes»: photographs of what is served, at 64 pixels.

Gandolier/genai_food101_repo (Food-101), ustbChengzhao/Image_search_clip (fruit and vegetables),
hybchow/gems (gemstones), dishangti/Cross-media-Signatures (signatures),
Cv-learning/A-dataset-for-crack-detection-and-segmentation (cracks),
goldentoaste/YGOData_Storage (fantasy art).
"""

from packing import Picture, Repository, asked, distinct, pack, pack_classes, square, take

SIZE, MOST = 64, 1000
EACH = 200  # so many pictures of a dish
LEFT_OUT = 5  # every fifth dish, by name, stays out
SHARES = (0.69, 0.82)  # where validation and test begin
SAME = 72  # bits of 256: below, two pictures of a dish may be copies
SERIES = 20  # of a dish, pictures whose numbers are nearer mostly show one serving
# Of 101 dishes, those that are no kind and no part of another one here.
DISHES = (
    "beef_carpaccio", "beet_salad", "bibimbap", "caprese_salad", "cheese_plate",
    "churros", "club_sandwich", "creme_brulee", "cup_cakes", "deviled_eggs",
    "donuts", "dumplings", "edamame", "eggs_benedict", "escargots",
    "french_onion_soup", "frozen_yogurt", "guacamole", "hamburger", "hot_dog",
    "macarons", "miso_soup", "mussels", "onion_rings", "oysters",
    "pad_thai", "paella", "pancakes", "pho", "pizza",
    "red_velvet_cake", "seaweed_salad", "spaghetti_carbonara", "sushi", "waffles",
)  # fmt: skip
# Edamame, beet salad and onion rings are of these, or of their like.
SERVED = ("beetroot", "onion", "peas", "soy beans")


def servings(pictures: list[Picture]) -> list[Picture]:
    """One picture of each: they are numbered as people took them."""
    ordered = sorted(pictures, key=lambda picture: int(picture.path.stem))
    numbers = [-SERIES, *(int(picture.path.stem) for picture in ordered)]
    return [
        p for p, last in zip(ordered, numbers, strict=False) if int(p.path.stem) - last > SERIES
    ]


def main() -> None:
    mirrors, out = asked(__doc__)
    source = Repository.of(mirrors, "Gandolier/genai_food101_repo")
    pictures = distinct(source.pictures("data/train"))
    chosen: list[Picture] = []
    for name in DISHES:
        chosen += take(servings([p for p in pictures if p.folder == name]), EACH, name)
    pack_classes(
        out, "dishes", source, chosen, DISHES, LEFT_OUT,
        size=SIZE, most=MOST, outline=SAME, shares=SHARES,
    )  # fmt: skip
    crops = Repository.of(mirrors, "ustbChengzhao/Image_search_clip")
    stones = Repository.of(mirrors, "hybchow/gems")
    names = Repository.of(mirrors, "dishangti/Cross-media-Signatures")
    walls = Repository.of(mirrors, "Cv-learning/A-dataset-for-crack-detection-and-segmentation")
    art = Repository.of(mirrors, "goldentoaste/YGOData_Storage")
    sets = {
        "produce": (crops, [p for p in crops.pictures("raw") if p.folder not in SERVED]),
        "gems": (stones, stones.pictures("train_selected")),
        "signatures": (names, names.pictures("experiment/square")),
        "cracks": (walls, walls.pictures("crack segmentation dataset/images")),
        "fantasy": (art, art.pictures("images")),
    }
    for name, (source, pictures) in sets.items():
        found = take(distinct(pictures), MOST, name)
        pack(out / f"{name}.npz", source.images(found, square(SIZE))[1])


if __name__ == "__main__":
    main()
