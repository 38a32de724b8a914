"""How sets and methods are called in figures, and how near and far are told apart."""

from collections.abc import Iterable
from typing import Any

from tulip_ood.figures.canvas import COLOURS

__all__ = ["GROUP_LINES", "METHODS", "SETS", "STAND_IN", "id_name", "method", "of_sets"]

STAND_IN = "†"
SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet200": "ImageNet-200",
    "imagenet": "ImageNet-1K",
    "tin": "TIN",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "texture": "Textures",
    "textures": "Textures",
    "places365": "Places365",
    "ssb_hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage_o": "OpenImage-O",
}
METHODS = {
    "ent": "entropy",
    "noise": "noise averaging alone, γ = 1",
    "noise-input": "input noise, as many passes",
    "tulip[lam=0,recipe=balanced]": "TULiP with λ = 0",
    "tulip-norm[recipe=balanced]": "TULiP with D := ‖f(z)‖",
    "tulip[recipe=balanced]": "TULiP (balanced)",
    "tulip": "TULiP (self-tuned)",
    "tulip[recipe=paper]": "TULiP, λ of Alg. 1",
    "tulip[recipe=paper,tune=ood]": "TULiP, λ of Alg. 1, J searched",
}
# Near OOD is solid and blue, far OOD dashed and vermilion, in every figure.
GROUP_LINES: dict[str, dict[str, Any]] = {
    "near": {"color": COLOURS["blue"], "ls": "-"},
    "far": {"color": COLOURS["vermilion"], "ls": (0, (5, 2))},
}


def id_name(id_set: str) -> str:
    """What an ID set is called in a figure.

    Example:
        >>> id_name("imagenet"), id_name("mine")
        ('ImageNet-1K', 'mine')
    """
    return SETS.get(id_set, id_set)


def method(name: str) -> str:
    """What a method is called in a figure: words for ours, capitals for the others.

    Example:
        >>> method("tulip"), method("ash-b")
        ('TULiP (self-tuned)', 'ASH-B')
    """
    known = {"react": "ReAct", "vim": "ViM", "gradnorm": "GradNorm", "tempscale": "TempScale"}
    return METHODS.get(name) or known.get(name) or name.upper()


def of_sets(sets: Iterable[tuple[str, str, str | None]]) -> str:
    """Which sets are near and far; those that stand in for the protocol's own are marked.

    Args:
        sets: (name, group, stand-in) of each.

    Example:
        >>> of_sets([("tin", "near", None), ("svhn", "far", "10,000 of 26,032")])
        'near: TIN; far: SVHN†'
    """
    found: dict[str, list[str]] = {}
    for name, group, stand_in in sets:
        found.setdefault(group, []).append(
            SETS.get(name, name) + (STAND_IN if stand_in is not None else "")
        )
    return "; ".join(f"{group}: {', '.join(names)}" for group, names in found.items())
