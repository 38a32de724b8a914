"""Every detector by name, with what it needs and what it costs."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.ebo import Energy
from tulip_ood.detectors.ent import Entropy
from tulip_ood.detectors.gen import GEN
from tulip_ood.detectors.mls import MaxLogit
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError

__all__ = ["METHODS", "Method", "available", "make"]


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
        Method("noise", NoiseAveraging, (), 12, "weight noise without the bound"),
        Method("tulip", Tulip, ("labels",), 12, "Zhang, Wu, Wada & Kanamori, 2025"),
    )
}


def available() -> list[Method]:
    """All methods.

    Example:
        >>> [method.name for method in available()]
        ['msp', 'ent', 'mls', 'ebo', 'gen', 'noise', 'tulip']
    """
    return list(METHODS.values())


def make(name: str, model: nn.Module, **settings: Any) -> Detector:
    """The detector called `name` for a model.

    Example:
        >>> import torch
        >>> make("ebo", torch.nn.Linear(2, 2)).name
        'ebo'
        >>> make("energy", torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown method 'energy'; choose from msp, ent, mls, ebo, \
gen, noise, tulip
    """
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name].detector(model, **settings)
