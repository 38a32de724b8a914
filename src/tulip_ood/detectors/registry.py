"""Every detector by name, with what it needs and what it costs."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from tulip_ood.detectors.ash_b import AshB
from tulip_ood.detectors.ash_p import AshP
from tulip_ood.detectors.ash_s import AshS
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.ebo import Energy
from tulip_ood.detectors.ent import Entropy
from tulip_ood.detectors.gen import GEN
from tulip_ood.detectors.logits import LogitDetector
from tulip_ood.detectors.mls import MaxLogit
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.react import React
from tulip_ood.detectors.scale import Scale
from tulip_ood.detectors.shaping import SHAPINGS
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network

__all__ = ["METHODS", "Method", "available", "class_of", "make"]


@dataclass(frozen=True)
class Method:
    """What a user wants to know before choosing a detector.

    Attributes:
        name: Its name, lower case.
        detector: Its class.
        needs: What it needs beside the network; labelled ID validation data sets the threshold
            of every method and is not named here.
        passes: Forward passes to score an input, with the default settings.
        reference: Where it comes from.

    Example:
        >>> METHODS["tulip"].passes
        12
    """

    name: str
    detector: type[Detector]
    needs: tuple[str, ...]
    passes: int
    reference: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {k: v for k, v in asdict(self).items() if k != "detector"}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("msp", MSP, (), 1, "Hendrycks & Gimpel, ICLR 2017"),
        Method("ent", Entropy, (), 1, "Shannon entropy of the softmax"),
        Method("mls", MaxLogit, (), 1, "Hendrycks et al., ICML 2022"),
        Method("ebo", Energy, (), 1, "Liu et al., NeurIPS 2020"),
        Method("gen", GEN, (), 1, "Liu et al., CVPR 2023"),
        Method("react", React, ("features",), 1, "Sun, Guo & Li, NeurIPS 2021"),
        Method("ash-b", AshB, ("features",), 1, "Djurisic et al., ICLR 2023"),
        Method("ash-s", AshS, ("features",), 1, "Djurisic et al., ICLR 2023"),
        Method("ash-p", AshP, ("features",), 1, "Djurisic et al., ICLR 2023"),
        Method("scale", Scale, ("features",), 1, "Xu et al., ICLR 2024"),
        Method("noise", NoiseAveraging, (), 12, "weight noise without the bound"),
        Method("tulip", Tulip, ("labels",), 12, "Zhang, Wu, Wada & Kanamori, 2025"),
    )
}


def available() -> list[Method]:
    """All methods.

    Example:
        >>> [method.name for method in available()]
        ['msp', 'ent', 'mls', 'ebo', 'gen', 'react', 'ash-b', 'ash-s', 'ash-p', 'scale', 'noise', \
'tulip']
    """
    return list(METHODS.values())


def class_of(name: str) -> type[Detector]:
    """The class of a method or composition.

    Example:
        >>> class_of("tulip+scale").__name__, class_of("msp&ebo").__name__
        ('Tulip', 'Sum')
    """
    if name in METHODS:
        return METHODS[name].detector
    if "&" in name:
        for part in name.split("&"):
            class_of(part)
        return Sum
    under, _, shaping = name.rpartition("+")
    if under in METHODS and shaping.partition(":")[0] in SHAPINGS:
        method = METHODS[under].detector
        if issubclass(method, Tulip) or (issubclass(method, LogitDetector) and not method.family):
            return method
        raise InputError(f"{under} is not a score of logits: nothing can be shaped under it")
    raise InputError(
        f"unknown method {name!r}; choose from {', '.join(METHODS)}; or shape features under one "
        f"(tulip+scale, gen+react:95); or add scores (tulip&knn)"
    )


def make(name: str, model: nn.Module | Network, **settings: Any) -> Detector:
    """The detector called `name` for a model.

    "score+shaping" shapes penultimate features under a score of logits, or inside TULiP's passes
    (there with the score GEN, unless another is asked for); "a&b" adds the scores of two methods.

    Example:
        >>> import torch
        >>> make("ebo", torch.nn.Linear(2, 2)).name, make("gen+scale", torch.nn.Linear(2, 2)).name
        ('ebo', 'gen+scale')
        >>> make("energy", torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown method 'energy'; choose from msp, ent, mls, ebo, \
gen, react, ash-b, ash-s, ash-p, scale, noise, tulip; or shape features under one (tulip+scale, \
gen+react:95); or add scores (tulip&knn)
    """
    kind = class_of(name)
    if kind is Sum:
        return Sum(model, parts=name.split("&"), **settings)
    if name in METHODS:
        return kind(model, **settings)
    if issubclass(kind, Tulip):
        settings.setdefault("score", "gen")
    settings["shaping"] = name.rpartition("+")[2]
    detector = kind(model, **settings)
    detector.name = name  # type: ignore[misc]
    return detector
