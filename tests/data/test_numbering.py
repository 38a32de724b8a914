"""Which output a class folder stands for: by name, in sorted order, or not at all."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tulip_ood.data.folder import class_folders
from tulip_ood.data.opening import all_class_folders, number_folders, open_sources
from tulip_ood.errors import DataError

NAMES = ("tench", "goldfish", "shark")
WNIDS = ("n01440764", "n01443537", "n01484850")


@pytest.mark.parametrize(
    ("folders", "known", "outputs", "expected"),
    [
        (("goldfish", "shark", "tench"), NAMES, None, NAMES),
        (("goldfish",), NAMES, None, NAMES),  # a part of the classes
        (("goldfish", "shark", "zebra"), NAMES, None, NAMES),  # zebra is not to become the third
        (WNIDS, NAMES, None, WNIDS),
        (WNIDS, NAMES, 3, WNIDS),
        (WNIDS[::-1], None, 3, WNIDS),
        (WNIDS[:2], None, None, WNIDS[:2]),  # how many outputs there are shows later
        ((), NAMES, 3, NAMES),
        ((), None, 3, None),
        (("cat",), ("crane", "crane", "cat"), None, ("crane", "crane", "cat")),
    ],
)
def test_the_rule(
    folders: Sequence[str],
    known: Sequence[str] | None,
    outputs: int | None,
    expected: tuple[str, ...] | None,
) -> None:
    assert number_folders(folders, known=known, outputs=outputs) == expected


@pytest.mark.parametrize(
    ("folders", "known", "outputs", "words"),
    [
        (WNIDS[:2], None, 3, r"2 class folders do not fit 3 outputs \(n0.*, n0.*\): .*--classes"),
        (WNIDS, None, 2, "3 class folders do not fit 2 outputs"),
        (WNIDS[:1], None, 3, rf"1 class folder does not fit 3 outputs \({WNIDS[0]}\): give"),
        (WNIDS[:2], NAMES, None, "2 class .* 3 outputs, and none has the name .*--classes"),
        (("cat", "crane"), ("crane", "crane", "cat"), None, "2 classes called 'crane'.*--classes"),
    ],
)
def test_folders_that_do_not_fit(
    folders: Sequence[str], known: Sequence[str] | None, outputs: int | None, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        number_folders(folders, known=known, outputs=outputs)


def test_folders_in_several_places_are_numbered_alike(tmp_path: Path) -> None:
    for name in ("val/n2", "val/n1", "test/n3", "test/.cache"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.png").touch()
    (tmp_path / "test" / "b.png").touch()
    places = [str(tmp_path / "val"), str(tmp_path / "test")]
    assert class_folders(places[1]) == ("n3",)
    folders = all_class_folders([*places, "gone.npz", str(tmp_path / "test" / "b.png")])
    assert folders == ("n1", "n2", "n3")
    numbered = number_folders(folders, known=NAMES)
    assert list(open_sources(places, classes=numbered).labels()) == [0, 1, None, 2]
