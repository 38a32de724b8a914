"""A small network on digits 0–7, a TULiP detector for it, and pictures to show it.

    from digits import prepare
    prepare(folder)    # folder/{net.safetensors,detector.safetensors,rival.safetensors,images/…}

`make` is the factory for `--model digits:make`; the folder is in the environment variable
`TULIP_DIGITS`. Pictures are enlarged to several sizes and stored as PNG and JPEG.
"""

import os
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.demo.data import load_data
from tulip_ood.models.digits import DigitNet, train_digit_net

PREPARED = Preprocess(8, 8, (0.0,), (1.0,), "box")
SIDES = (8, 24, 64, 160)


def make() -> DigitNet:
    """The trained network."""
    net = DigitNet(8)
    net.load_state_dict(load_file(Path(os.environ["TULIP_DIGITS"], "net.safetensors")))
    return net.eval()


def prepare(folder: Path, steepness: float = 1.8) -> None:
    """Train, fit, and write pictures of test digits, of digits 8 and 9, and of photographs.

    The last layer is made steeper: an over-confident network, as large ones are. From about 2.5 on
    TULiP changes its probabilities.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = load_data(0)
    net = train_digit_net(*data.train, classes=8, epochs=40)
    with torch.no_grad():
        net.fc.weight *= steepness
        net.fc.bias *= steepness
    save_file(net.state_dict(), folder / "net.safetensors")
    kinds = {"detector": tulip_ood.Tulip(net), "rival": tulip_ood.detectors.make("ent", net)}
    for name, detector in kinds.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tulip_ood.TulipWarning)
            detector.fit([as_served(data.validation)])
        detector.provenance |= {
            "model_spec": "digits:make",
            "preprocess": PREPARED.to_json(),
            "preprocess_sha256": PREPARED.fingerprint,
            "classes": list(data.class_names),
        }
        detector.save(folder / f"{name}.safetensors")
    sets = {"digits": data.test[0], **{k.replace(" ", "-"): v for k, v in data.ood.items()}}
    for name, pictures in sets.items():
        place = folder / "images" / name
        place.mkdir(parents=True, exist_ok=True)
        for i, picture in enumerate(pictures[:200]):
            side = SIDES[i % len(SIDES)]
            image = Image.fromarray(grey(picture)).resize((side, side), Image.Resampling.NEAREST)
            image.save(place / f"{i:03d}.{'png' if i % 3 else 'jpg'}")


def grey(picture: torch.Tensor) -> np.ndarray:
    return (255 * picture[0]).round().to(torch.uint8).numpy()


def as_served(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures with 8 bits, as files have them."""
    x, y = pair
    return (255 * x).round() / 255, y
