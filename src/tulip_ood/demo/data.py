"""The demo's pictures: scikit-learn's digits, patches of its two photographs, and noise.

The digits were made by counting the ink in 4 × 4 blocks of 32 × 32 bitmaps; photographs go the
same way, so that nothing but their content gives them away.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tulip_ood.errors import DataError
from tulip_ood.numerics import random

__all__ = ["HELD_OUT", "DigitData", "load_data"]

HELD_OUT = (8, 9)
TRAIN, VALIDATION = 150, 600
PATCHES = 400
_SIDE, _BLOCK = 8, 4
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class DigitData:
    """Everything that the demo uses; pictures [N, 1, 8, 8] in 0…1.

    Attributes:
        train: Pictures and labels that the network learns from.
        validation: Pictures and labels that detectors are fitted on.
        test: Pictures and labels that they are judged on.
        ood: Pictures of each kind that the network was never meant for.
        groups: "near" or "far" for each of these.
        class_names: What the outputs mean.

    Example:
        >>> data = load_data(seed=0)
        >>> {name: len(images) for name, images in data.ood.items()}
        {'digits 8 and 9': 354, 'photographs': 400, 'noise': 400}
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood: dict[str, Tensor]
    groups: dict[str, str]
    class_names: tuple[str, ...]


def load_data(seed: int = 0) -> DigitData:
    """Digits 0–7 split into train, validation and test; 8 and 9, photographs and noise as OOD.

    Args:
        seed: Decides the split, which patches are cut out, and the noise.

    Raises:
        DataError: If scikit-learn, which carries the pictures, is not installed.

    Example:
        >>> data = load_data(seed=0)
        >>> [len(part[1]) for part in (data.train, data.validation, data.test)]
        [150, 600, 693]
    """
    datasets = _sklearn_datasets()
    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).to(torch.int64)
    held_out = torch.isin(labels, torch.tensor(HELD_OUT))
    known = (~held_out).nonzero().squeeze(1)
    known = known[random.permutation(len(known), seed=seed, name="demo/split")]
    parts = known[:TRAIN], known[TRAIN : TRAIN + VALIDATION], known[TRAIN + VALIDATION :]
    train, validation, test = ((images[part], labels[part]) for part in parts)
    name = f"digits {' and '.join(map(str, HELD_OUT))}"
    return DigitData(
        train,
        validation,
        test,
        {
            name: images[held_out],
            "photographs": _patches(datasets.load_sample_images().images, seed),
            "noise": random.uniform((PATCHES, 1, _SIDE, _SIDE), seed=seed, name="demo/noise"),
        },
        {name: "near", "photographs": "far", "noise": "far"},
        tuple(str(digit) for digit in range(10) if digit not in HELD_OUT),
    )


def _sklearn_datasets() -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            "the demo takes its pictures from scikit-learn, which is not installed: "
            "pip install 'tulip-ood[demo]'"
        ) from error
    return datasets


def _patches(photographs: list[np.ndarray[Any, np.dtype[np.uint8]]], seed: int) -> Tensor:
    """As many 32 × 32 squares of each, grey, block means: [PATCHES, 1, 8, 8]."""
    side, found = _SIDE * _BLOCK, []
    each = PATCHES // len(photographs)
    for number, photograph in enumerate(photographs):
        grey = torch.from_numpy(photograph @ np.array(_LUMA, dtype=np.float32) / 255)
        tops, lefts = (
            random.integers((each,), length - side + 1, seed=seed, name=f"demo/{axis}/{number}")
            for axis, length in zip(("top", "left"), grey.shape, strict=True)
        )
        for top, left in zip(tops.tolist(), lefts.tolist(), strict=True):
            square = grey[top : top + side, left : left + side]
            found.append(square.reshape(_SIDE, _BLOCK, _SIDE, _BLOCK).mean(dim=(1, 3)))
    return torch.stack(found).unsqueeze(1)
