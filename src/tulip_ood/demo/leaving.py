"""What the demo leaves behind to go on with: its network, its detector, and some pictures.

Pictures are 64 × 64, every value of the 8 × 8 a square of its own, white ink on black as the
network takes it. The checkpoint says that images become 8 × 8 by means over squares: so these come
out again, to the 255th part, and a larger drawing goes the way on which the digits were made.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tulip_ood.models.architectures import architecture_of
from tulip_ood.models.checkpoints import load_checkpoint
from tulip_ood.network.files import save_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from tulip_ood.demo.run import DemoResult

__all__ = ["Left", "leave"]

_OF_A_CLASS, _OF_A_KIND = 5, 20
_ENLARGED = 8


@dataclass(frozen=True)
class Left:
    """Where things are.

    Attributes:
        network: A checkpoint, as `--model` takes it.
        detector: TULiP, fitted for it.
        known: Test pictures in folders of their classes.
        unknown: OOD pictures in folders of their kinds.

    Example:
        >>> list(Left.__dataclass_fields__)
        ['network', 'detector', 'known', 'unknown']
    """

    network: Path
    detector: Path
    known: Path
    unknown: Path


def leave(folder: Path, result: "DemoResult") -> Left:
    """Write the network, the detector and some of the pictures into a folder that is there.

    Args:
        folder: Where to.
        result: What `run_demo` returned.

    Example:
        >>> import inspect  # `DemoResult.write` calls it
        >>> list(inspect.signature(leave).parameters)
        ['folder', 'result']
    """
    names = result.data.class_names
    left = Left(
        folder / "network.safetensors",
        folder / "detector.safetensors",
        folder / "images" / "known",
        folder / "images" / "unknown",
    )
    about = {
        "arch": architecture_of(result.model),
        "classes": str(len(names)),
        "mean": "0",
        "std": "1",
    }
    save_tensors(left.network, result.model.state_dict(), about)
    preprocess = load_checkpoint(str(left.network)).preprocess
    assert preprocess is not None
    result.tulip.provenance = {
        "model_spec": str(left.network),
        "preprocess": preprocess.to_json(),
        "preprocess_sha256": preprocess.fingerprint,
        "classes": list(names),
    }
    result.tulip.save(left.detector)
    images, labels = result.data.test
    for label, name in enumerate(names):
        _draw(left.known / name, images[labels == label][:_OF_A_CLASS])
    for kind, pictures in result.data.ood.items():
        _draw(left.unknown / kind.replace(" ", "-"), pictures[:_OF_A_KIND])
    return left


def _draw(folder: Path, pictures: "Tensor") -> None:
    """Pictures [N, 1, 8, 8] in 0…1 as files; those of an earlier demo go."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    square = np.ones((_ENLARGED, _ENLARGED), dtype=np.uint8)
    for number, picture in enumerate((pictures[:, 0] * 255).round().byte().numpy()):
        Image.fromarray(np.kron(picture, square)).save(folder / f"{number:02}.png")
