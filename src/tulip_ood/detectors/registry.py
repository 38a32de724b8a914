"""Every detector by name, with what it needs and what it costs."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from tulip_ood.detectors.adascale_a import AdaScaleA
from tulip_ood.detectors.adascale_l import AdaScaleL
from tulip_ood.detectors.ash_b import AshB
from tulip_ood.detectors.ash_p import AshP
from tulip_ood.detectors.ash_s import AshS
from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.ebo import Energy
from tulip_ood.detectors.ensemble import Ensemble
from tulip_ood.detectors.ent import Entropy
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.gen import GEN
from tulip_ood.detectors.gradnorm import GradNorm
from tulip_ood.detectors.gram import Gram
from tulip_ood.detectors.knn import KNN
from tulip_ood.detectors.laplace import LastLayerLaplace
from tulip_ood.detectors.logits import LogitDetector
from tulip_ood.detectors.mcd import MCDropout
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.mds_plus import MDSPlus
from tulip_ood.detectors.mls import MaxLogit
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.odin import ODIN
from tulip_ood.detectors.own import find_own
from tulip_ood.detectors.rankfeat import RankFeat
from tulip_ood.detectors.react import React
from tulip_ood.detectors.rmds import RMDS
from tulip_ood.detectors.rmds_plus import RMDSPlus
from tulip_ood.detectors.scale import Scale
from tulip_ood.detectors.shaping import SHAPINGS
from tulip_ood.detectors.tempscale import TemperatureScaling
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.detectors.vim import ViM
from tulip_ood.detectors.weiper import WeiPer
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network

__all__ = ["METHODS", "Method", "available", "class_of", "make"]

# What a method may need beside a network that returns logits.
LABELS = "labels"
FEATURES = "features"  # penultimate ones, in front of the last linear layer
GRADIENTS = "gradients"
MAPS = "inner layers"
DROPOUT = "dropout layers"
NETWORKS = "several networks"


@dataclass(frozen=True)
class Method:
    """What a user wants to know before choosing a detector.

    Attributes:
        name: Its name, lower case.
        detector: Its class.
        needs: What it needs beside the network; labelled ID validation data sets the threshold
            of every method and is not named here.
        passes: Forward passes to score an input, with the default settings; a backward pass
            counts as two.
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
        return {
            "name": self.name,
            "needs": list(self.needs),
            "learns_from": self.learns_from,
            "searches": sorted(self.searches),
            "passes": self.passes,
            "reference": self.reference,
        }

    @property
    def learns_from(self) -> str:
        """Which data it learns from: "nothing", "val" or "val or train" (the threshold aside)."""
        if self.detector.learns_from_data:
            return "val or train"
        alone = issubclass(self.detector, LogitDetector) and not self.detector.family
        return "nothing" if alone or not self.detector.learns else "val"

    @property
    def searches(self) -> set[str]:
        """The parameters that can be chosen against OOD data (`fit(tune=…)`)."""
        if issubclass(self.detector, Tulip):
            return {"epsilon", "lam", "j"}
        shaped = getattr(self.detector, "family", None) is not None
        return set(self.detector.search) | ({"percentile"} if shaped else set())


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("msp", MSP, (), 1, "Hendrycks & Gimpel, ICLR 2017"),
        Method("ent", Entropy, (), 1, "Shannon entropy of the softmax"),
        Method("mls", MaxLogit, (), 1, "Hendrycks et al., ICML 2022"),
        Method("ebo", Energy, (), 1, "Liu et al., NeurIPS 2020"),
        Method("gen", GEN, (), 1, "Liu, Lochman & Zach, CVPR 2023"),
        Method("tempscale", TemperatureScaling, (LABELS,), 1, "Guo et al., ICML 2017"),
        Method("odin", ODIN, (GRADIENTS,), 5, "Liang, Li & Srikant, ICLR 2018"),
        Method("react", React, (FEATURES,), 1, "Sun, Guo & Li, NeurIPS 2021"),
        Method("ash-b", AshB, (FEATURES,), 1, "Djurisic et al., ICLR 2023"),
        Method("ash-s", AshS, (FEATURES,), 1, "Djurisic et al., ICLR 2023"),
        Method("ash-p", AshP, (FEATURES,), 1, "Djurisic et al., ICLR 2023"),
        Method("scale", Scale, (FEATURES,), 1, "Xu et al., ICLR 2024"),
        Method("adascale-a", AdaScaleA, (FEATURES, GRADIENTS), 5, "Regmi, 2025"),
        Method("adascale-l", AdaScaleL, (FEATURES, GRADIENTS), 5, "Regmi, 2025"),
        Method("mds", MDS, (FEATURES, LABELS), 1, "Lee et al., NeurIPS 2018"),
        Method("mds++", MDSPlus, (FEATURES, LABELS), 1, "Mueller & Hein, ICML 2025"),
        Method("rmds", RMDS, (FEATURES, LABELS), 1, "Ren et al., ICML UDL workshop 2021"),
        Method("rmds++", RMDSPlus, (FEATURES, LABELS), 1, "Mueller & Hein, ICML 2025"),
        Method("vim", ViM, (FEATURES,), 1, "Wang et al., CVPR 2022"),
        Method("knn", KNN, (FEATURES,), 1, "Sun et al., ICML 2022"),
        Method("fdbd", FDBD, (FEATURES,), 1, "Liu & Qin, ICML 2024"),
        Method("nci", NCI, (FEATURES,), 1, "Liu & Qin, CVPR 2025"),
        Method("nnguide", NNGuide, (FEATURES,), 1, "Park, Jung & Teoh, ICCV 2023"),
        Method("gram", Gram, (MAPS,), 2, "Sastry & Oore, ICML 2020"),
        Method("gradnorm", GradNorm, (FEATURES,), 1, "Huang, Geng & Li, NeurIPS 2021"),
        Method("rankfeat", RankFeat, (MAPS,), 3, "Song, Sebe & Wang, NeurIPS 2022"),
        Method("weiper", WeiPer, (FEATURES,), 1, "Granz, Heurich & Landgraf, NeurIPS 2024"),
        Method("laplace", LastLayerLaplace, (FEATURES,), 1, "Daxberger et al., NeurIPS 2021"),
        Method("mcd", MCDropout, (DROPOUT,), 6, "Gal & Ghahramani, ICML 2016"),
        Method("ensemble", Ensemble, (NETWORKS,), 2, "Lakshminarayanan et al., NeurIPS 2017"),
        Method("noise", NoiseAveraging, (), 11, "weight noise without the bound"),
        Method("tulip", Tulip, (LABELS,), 12, "Zhang, Wu, Wada & Kanamori, 2025"),
        Method("auto", Auto, (LABELS,), 9, "TULiP, how features lie, inner stages"),
    )
}


def available() -> list[Method]:
    """All methods.

    Example:
        >>> [method.name for method in available()][:4]
        ['msp', 'ent', 'mls', 'ebo']
    """
    return list(METHODS.values())


def class_of(name: str) -> type[Detector]:
    """The class of a method or composition; or one of the user's own, if it is defined.

    Example:
        >>> class_of("tulip+scale").__name__, class_of("msp&ebo").__name__
        ('Tulip', 'Sum')
    """
    if not isinstance(name, str):
        raise InputError(
            f"a method is given by its name, as in make('knn', model); got {type(name).__name__}"
        )
    if name in METHODS:
        return METHODS[name].detector
    own = find_own(name)
    if own is not None:
        return own
    if "&" in name:
        for part in name.split("&"):
            if issubclass(class_of(part), Sum):
                raise InputError(
                    f"{name}: {part} is a sum already, of parts that it weighs itself, and cannot "
                    f"be added to another; use it alone"
                )
        return Sum
    under, _, shaping = name.rpartition("+")
    if under in METHODS and shaping.partition(":")[0] in SHAPINGS:
        method = METHODS[under].detector
        if issubclass(method, Tulip) or (issubclass(method, LogitDetector) and not method.family):
            return method
        raise InputError(f"{under} is not a score of logits: nothing can be shaped under it")
    raise InputError(
        f"unknown method {name!r}; choose from {', '.join(METHODS)}; or shape features under one "
        f"(tulip+scale, gen+react:95); or add scores (tulip&knn); a class of your own is found by "
        f"its name once it is defined"
    )


def make(name: str, model: nn.Module | Network, **settings: Any) -> Detector:
    """The detector called `name` for a model.

    "score+shaping" shapes penultimate features under a score of logits, or inside TULiP's passes
    (there with the score GEN, unless another is asked for); "a&b" adds the scores of two methods.

    Example:
        >>> import torch
        >>> make("ebo", torch.nn.Linear(2, 2)).name, make("gen+scale", torch.nn.Linear(2, 2)).name
        ('ebo', 'gen+scale')
        >>> make("energy", torch.nn.Linear(2, 2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown method 'energy'; choose from msp, ent, mls, ebo, ...
    """
    kind = class_of(name)
    if kind is Sum:
        return Sum(model, parts=name.split("&"), **settings)
    if name in METHODS or kind is find_own(name):
        return kind(model, **settings)
    if issubclass(kind, Tulip):
        settings.setdefault("score", "gen")
    settings["shaping"] = name.rpartition("+")[2]
    detector = kind(model, **settings)
    detector.name = name  # type: ignore[misc]
    return detector
