"""The published numbers: those of the table, under our names, with their doubts."""

import pytest

from tulip_ood.benchmark import published
from tulip_ood.benchmark.published import DOUBTFUL, PAPERS_TULIP, PUBLISHED, known_for
from tulip_ood.data.protocol import PROTOCOLS
from tulip_ood.detectors.registry import METHODS


@pytest.mark.parametrize(
    ("id_set", "method", "expected"),
    [
        ("cifar10", "msp", (88.03, 90.73, 48.17, 31.71)),
        ("cifar10", "ash-b", (75.27, 78.49, 86.79, 79.02)),
        ("cifar100", "knn", (80.18, 82.40, 61.23, 53.64)),
        ("imagenet200", PAPERS_TULIP, (83.84, 91.05, 54.75, 33.62)),
        ("imagenet", "ent", (76.55, 86.21, 65.63, 51.28)),
        ("imagenet", "mls", (76.46, 89.57, 51.35, 63.60)),
        ("cifar10", "gen", (88.20, 91.35, 53.67, 47.03)),
    ],
)
def test_numbers(id_set: str, method: str, expected: tuple[float, ...]) -> None:
    found = PUBLISHED[id_set][method]
    assert tuple(found[key] for key in ("near", "far", "near_fpr", "far_fpr")) == expected


def test_every_method_is_ours_and_has_both_aurocs() -> None:
    assert set(PUBLISHED) == set(PROTOCOLS) == set(published.BEST_KNOWN)
    for methods in PUBLISHED.values():
        assert set(methods) - {PAPERS_TULIP} <= set(METHODS)
        assert len(methods) == 18
        for numbers in methods.values():
            assert {"near", "far"} <= set(numbers)
            assert ("near_fpr" in numbers) == ("far_fpr" in numbers)
            assert all(0 < value < 100 for value in numbers.values())
    assert "near_fpr" not in PUBLISHED["cifar10"]["rankfeat"]


def test_doubts_are_about_numbers_that_are_there() -> None:
    for id_set, method, number in DOUBTFUL:
        assert number in PUBLISHED[id_set][method]
    assert ("imagenet", "mls", "near_fpr") in DOUBTFUL
    assert ("cifar10", "gen", "far_fpr") in DOUBTFUL
    assert ("cifar10", "gen", "near_fpr") not in DOUBTFUL


def test_which_method_a_number_belongs_beside() -> None:
    for name in ("knn", "knn[tune=ood]"):
        known = known_for("cifar10", name)
        assert known is not None
        assert (known.method, known.same) == ("knn", True)
    for name in (PAPERS_TULIP, "tulip[tune=ood, recipe=paper]"):
        known = known_for("cifar10", name)
        assert known is not None
        assert (known.method, known.same) == (PAPERS_TULIP, True)
    plain = known_for("cifar10", "tulip")
    assert plain is not None
    assert (plain.method, plain.same) == (PAPERS_TULIP, False)
    for name in ("tulip[recipe=paper]", "tulip+scale", "tulip&knn", "knn[k=5]", "fdbd"):
        assert known_for("cifar10", name) is None
    assert known_for("my own set", "msp") is None
