"""The protocol's tables, and what is refused."""

import pytest

from tulip_ood.data.protocol import PROTOCOLS, protocol_of
from tulip_ood.errors import InputError

# train, val, test, OOD val, then the sets, as OpenOOD v1.5 publishes them.
COUNTS = {
    "cifar10": (50_000, 1_000, 9_000, 1_000, {"cifar100": 9_000, "tin": 7_793, "mnist": 70_000,
                "svhn": 26_032, "texture": 5_640, "places365": 35_195, "cifar10c": 10_000}),
    "cifar100": (50_000, 1_000, 9_000, 972, {"cifar10": 10_000, "tin": 6_526, "mnist": 70_000,
                 "svhn": 26_032, "texture": 5_640, "places365": 33_773}),
    "imagenet200": (None, 1_000, 9_000, 1_763, {"ssb_hard": 49_000, "ninco": 5_879,
                    "inaturalist": 10_000, "textures": 5_160, "openimage_o": 15_869,
                    "imagenet_v2": 2_000, "imagenet_c": 2_000, "imagenet_r": 30_000,
                    "blur_imagenet": 9_000}),
    "imagenet": (1_281_167, 5_000, 45_000, 1_763, {"ssb_hard": 49_000, "ninco": 5_879,
                 "inaturalist": 10_000, "textures": 5_160, "openimage_o": 15_869,
                 "imagenet_v2": 10_000, "imagenet_c": 10_000, "imagenet_r": 30_000,
                 "imagenet_es": 64_000, "blur_imagenet": 45_000}),
}  # fmt: skip


def test_every_count() -> None:
    found = {
        name: (p.train, p.val, p.test, p.ood_val.count, {s.name: s.count for s in p.sets})
        for name, p in PROTOCOLS.items()
    }
    assert found == COUNTS


def test_groups_and_where_sets_are_published() -> None:
    assert [s.name for s in PROTOCOLS["cifar10"].in_group("shifted")] == ["cifar10c"]
    assert [s.name for s in PROTOCOLS["cifar100"].in_group("shifted")] == []
    near = [s.name for s in PROTOCOLS["imagenet"].in_group("near")]
    assert near == ["ssb_hard", "ninco"]
    for protocol in PROTOCOLS.values():
        assert {s.group for s in protocol.sets} <= {"near", "far", "shifted"}
        assert all(s.published for s in (*protocol.sets, protocol.ood_val))


def test_lists_are_called_as_openood_calls_them() -> None:
    small, large = PROTOCOLS["imagenet200"], PROTOCOLS["imagenet"]
    assert small.set_of("imagenet_v2").list_name == "imagenet200_v2"
    assert large.set_of("imagenet_es").list_name == "imagenet_es"
    assert large.set_of("textures").images == "images_classic"
    assert large.set_of("ninco").images == large.images == "images_largescale"


def test_preparation() -> None:
    cifar = PROTOCOLS["cifar100"].preprocess
    assert (cifar.resize, cifar.crop, cifar.mean[0], cifar.std[2]) == (32, 32, 0.5071, 0.2761)
    imagenet = PROTOCOLS["imagenet200"]
    assert (imagenet.preprocess.resize, imagenet.preprocess.crop) == (256, 224)
    as_it_is = imagenet.preprocess_of("imagenet_c")
    assert (as_it_is.resize, as_it_is.crop, as_it_is.mean) == (None, None, imagenet.mean)
    for role in ("test", "ood_val", "imagenet_v2", "blur_imagenet"):
        assert imagenet.preprocess_of(role) == imagenet.preprocess


def test_unknown_names_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="cifar10, cifar100, imagenet200, imagenet"):
        protocol_of("stl10")
    with pytest.raises(InputError, match="no set of the protocol for cifar100.*places365"):
        protocol_of("cifar100").set_of("cifar10c")
