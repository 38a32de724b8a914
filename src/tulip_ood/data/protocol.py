"""OpenOOD v1.5's protocol: which sets there are for each ID set, how many images, how prepared."""

from dataclasses import dataclass

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import InputError

__all__ = ["PROTOCOLS", "Protocol", "ProtocolSet", "protocol_of"]

_CLASSIC, _LARGE = "images_classic", "images_largescale"
_MADE_HERE = "made from the ID test images: tulip data corrupt"

# Who publishes a set. OpenOOD's own download script collects all but the last.
_PUBLISHED = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "tin": "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "mnist": "http://yann.lecun.com/exdb/mnist/",
    "svhn": "http://ufldl.stanford.edu/housenumbers/",
    "texture": "https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    "textures": "https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    "places365": "http://places2.csail.mit.edu/",
    "cifar10c": "https://zenodo.org/records/2535967",
    "imagenet": "https://www.image-net.org/",
    "imagenet200": "https://www.image-net.org/",
    "ssb_hard": "https://github.com/sgvaze/SSB",
    "ninco": "https://github.com/j-cb/NINCO",
    "inaturalist": "https://github.com/deeplearning-wisc/large_scale_ood",
    "openimage_o": "https://github.com/haoqiwang/vim",
    "imagenet_v2": "https://github.com/modestyachts/ImageNetV2",
    "imagenet_c": "https://zenodo.org/records/2235448",
    "imagenet_r": "https://github.com/hendrycks/imagenet-r",
    "imagenet_es": "https://github.com/Edw2n/ImageNet-ES",
    "blur_imagenet": _MADE_HERE,
}


@dataclass(frozen=True)
class ProtocolSet:
    """One of the sets that detectors are judged on.

    Attributes:
        name: As the protocol calls it.
        group: "near", "far" or "shifted" (ID classes, other conditions).
        count: How many images it has.
        published: Who publishes the images.
        listed_as: What OpenOOD's list is called after `test_` or `val_`; "" if it is the name.
        images: OpenOOD's folder that the paths in the list are relative to.
        as_is: Whether its images are neither resized nor cropped.

    Example:
        >>> ProtocolSet("svhn", "far", 26_032, "http://ufldl.stanford.edu/housenumbers/").list_name
        'svhn'
    """

    name: str
    group: str
    count: int
    published: str
    listed_as: str = ""
    images: str = _CLASSIC
    as_is: bool = False

    @property
    def list_name(self) -> str:
        """What OpenOOD's list is called after `test_` or `val_`."""
        return self.listed_as or self.name


@dataclass(frozen=True)
class Protocol:
    """All that belongs to one ID set.

    Attributes:
        id_set: Its name.
        classes: How many it has.
        resize: The shorter side after resizing.
        crop: The side of the centre crop.
        mean: Of the channels.
        std: Of the channels.
        train: How many training images there are; None where the protocol does not say.
        val: How many of the original test images are validation data.
        test: How many of them are left to judge on.
        ood_val: The OOD images that parameters are chosen on.
        sets: What detectors are judged on: near, far, shifted.
        published: Who publishes the ID images.
        images: OpenOOD's folder that the paths in the ID lists are relative to.

    Example:
        >>> protocol = protocol_of("cifar10")
        >>> protocol.preprocess.crop, [each.name for each in protocol.in_group("near")]
        (32, ['cifar100', 'tin'])
    """

    id_set: str
    classes: int
    resize: int
    crop: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train: int | None
    val: int
    test: int
    ood_val: ProtocolSet
    sets: tuple[ProtocolSet, ...]
    published: str
    images: str = _CLASSIC

    @property
    def preprocess(self) -> Preprocess:
        """How images become inputs: ID, OOD and training images alike."""
        return Preprocess(self.resize, self.crop, self.mean, self.std)

    def preprocess_of(self, role: str) -> Preprocess:
        """How the images of a set become inputs; a role that is no set is prepared as usual.

        Example:
            >>> protocol_of("imagenet").preprocess_of("imagenet_c").resize is None
            True
        """
        if role in self.names and self.set_of(role).as_is:
            return Preprocess(None, None, self.mean, self.std)
        return self.preprocess

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sets that detectors are judged on."""
        return tuple(each.name for each in self.sets)

    def in_group(self, group: str) -> tuple[ProtocolSet, ...]:
        """The sets of a group: "near", "far" or "shifted"."""
        return tuple(each for each in self.sets if each.group == group)

    def set_of(self, name: str) -> ProtocolSet:
        """The set called so; refuses others.

        Example:
            >>> protocol_of("cifar100").set_of("places365").count
            33773
        """
        for each in self.sets:
            if each.name == name:
                return each
        raise InputError(
            f"{name!r} is no set of the protocol for {self.id_set}; its sets are "
            f"{', '.join(self.names)}"
        )

    @property
    def roles(self) -> tuple[str, ...]:
        """Everything that can be asked for: the splits of the ID set, then the sets."""
        return ("train", "val", "test", "ood_val", *self.names)


def _sets(group: str, images: str, **counts: int) -> tuple[ProtocolSet, ...]:
    return tuple(
        ProtocolSet(name, group, count, _PUBLISHED[name], images=images)
        for name, count in counts.items()
    )


def _cifar(
    id_set: str,
    classes: int,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    ood_val: int,
    sets: tuple[ProtocolSet, ...],
) -> Protocol:
    return Protocol(
        id_set, classes, 32, 32, mean, std,
        train=50_000, val=1_000, test=9_000,
        ood_val=ProtocolSet("tin", "near", ood_val, _PUBLISHED["tin"]),
        sets=sets, published=_PUBLISHED[id_set],
    )  # fmt: skip


def _imagenet(
    id_set: str, classes: int, train: int | None, val: int, test: int, shifted: dict[str, int]
) -> Protocol:
    near = _sets("near", _LARGE, ssb_hard=49_000, ninco=5_879)
    far = (
        *_sets("far", _LARGE, inaturalist=10_000),
        # The textures lie among the small images, in OpenOOD's folders too.
        *_sets("far", _CLASSIC, textures=5_160),
        *_sets("far", _LARGE, openimage_o=15_869),
    )
    others = tuple(
        ProtocolSet(
            name, "shifted", count, _PUBLISHED[name],
            listed_as="" if name == "blur_imagenet" else name.replace("imagenet", id_set),
            images=_LARGE, as_is=name == "imagenet_c",
        )
        for name, count in shifted.items()
    )  # fmt: skip
    return Protocol(
        id_set, classes, 256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
        train=train, val=val, test=test,
        ood_val=ProtocolSet(
            "openimage_o", "far", 1_763, _PUBLISHED["openimage_o"], images=_LARGE
        ),
        sets=(*near, *far, *others), published=_PUBLISHED[id_set], images=_LARGE,
    )  # fmt: skip


PROTOCOLS: dict[str, Protocol] = {
    "cifar10": _cifar(
        "cifar10", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1_000,
        (
            *_sets("near", _CLASSIC, cifar100=9_000, tin=7_793),
            *_sets("far", _CLASSIC, mnist=70_000, svhn=26_032, texture=5_640, places365=35_195),
            *_sets("shifted", _CLASSIC, cifar10c=10_000),
        ),
    ),
    "cifar100": _cifar(
        "cifar100", 100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), 972,
        (
            *_sets("near", _CLASSIC, cifar10=10_000, tin=6_526),
            *_sets("far", _CLASSIC, mnist=70_000, svhn=26_032, texture=5_640, places365=33_773),
        ),
    ),
    "imagenet200": _imagenet(
        "imagenet200", 200, None, 1_000, 9_000,
        {"imagenet_v2": 2_000, "imagenet_c": 2_000, "imagenet_r": 30_000, "blur_imagenet": 9_000},
    ),
    "imagenet": _imagenet(
        "imagenet", 1_000, 1_281_167, 5_000, 45_000,
        {
            "imagenet_v2": 10_000,
            "imagenet_c": 10_000,
            "imagenet_r": 30_000,
            "imagenet_es": 64_000,
            "blur_imagenet": 45_000,  # the paper's, not OpenOOD's
        },
    ),
}  # fmt: skip


def protocol_of(id_set: str) -> Protocol:
    """The protocol for an ID set; refuses what it does not know.

    Example:
        >>> protocol_of("imagenet").test
        45000
        >>> protocol_of("mnist")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no protocol for the ID set 'mnist'; there is one \
for cifar10, cifar100, imagenet200, imagenet
    """
    if id_set not in PROTOCOLS:
        raise InputError(
            f"there is no protocol for the ID set {id_set!r}; there is one for "
            f"{', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[id_set]
