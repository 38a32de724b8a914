"""Detectors: one protocol, one file for each method."""

from tulip_ood.detectors.ash_b import AshB
from tulip_ood.detectors.ash_p import AshP
from tulip_ood.detectors.ash_s import AshS
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.ebo import Energy
from tulip_ood.detectors.ent import Entropy
from tulip_ood.detectors.gen import GEN
from tulip_ood.detectors.mls import MaxLogit
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.noise import NoiseAveraging
from tulip_ood.detectors.react import React
from tulip_ood.detectors.registry import available, make
from tulip_ood.detectors.scale import Scale
from tulip_ood.detectors.tulip import Tulip

__all__ = [
    "GEN",
    "MSP",
    "AshB",
    "AshP",
    "AshS",
    "Detector",
    "Energy",
    "Entropy",
    "MaxLogit",
    "NoiseAveraging",
    "React",
    "Scale",
    "Sum",
    "Tulip",
    "available",
    "make",
]
