"""Every method on CIFAR-10 and the sets at hand, on both tracks, from shared passes.

    make evidence-methods DATA=sets.npz TRAIN=train.npz CHECKPOINT=net.safetensors NAME=s0 TUNE=ood

`TUNE=ood` chooses parameters against OOD validation images as OpenOOD does (TULiP too), `pseudo`
against images made from the validation inputs, `none` leaves every method as it comes. Writes one
JSON file with every number, the parameters chosen, and the methods that could not be run.
"""

import argparse
import json
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.cifar import groups, load_network, load_sets

import tulip_ood
from tulip_ood.version import __version__


class Batches:
    """uint8 images as a loader of normalised batches that can be read again."""

    def __init__(self, images: Tensor, labels: Tensor | None, size: int = 500) -> None:
        self.images, self.labels, self.size = images, labels, size

    def __iter__(self) -> Any:
        for i in range(0, len(self.images), self.size):
            x = self.images[i : i + self.size]
            yield x if self.labels is None else (x, self.labels[i : i + self.size])


class Training(Batches):
    """Training images, normalised only when their turn comes."""

    def __init__(self, path: Path, mean: Tensor, std: Tensor, limit: int | None) -> None:
        with np.load(path) as packed:
            images, labels = packed["train"], packed["train_labels"]
        if limit is not None:
            kept = np.random.default_rng(0).permutation(len(images))[:limit]
            images, labels = images[kept], labels[kept]
        super().__init__(torch.from_numpy(images), torch.from_numpy(labels).long())
        self.mean, self.std = mean.view(3, 1, 1), std.view(3, 1, 1)

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield (x.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std, y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--train-limit", type=int)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ensemble", type=Path, nargs="*", default=[])
    parser.add_argument("--methods", default="all")
    parser.add_argument("--tune", choices=["none", "ood", "pseudo"], default="none")
    parser.add_argument("--far-limit", type=int, help="images of each far set")
    parser.add_argument("--near-limit", type=int, help="images of each near set")
    parser.add_argument("--id-limit", type=int, help="ID test images")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", tulip_ood.TulipWarning)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, mean, std = load_network(arguments.checkpoint)
    sets = load_sets(arguments.data, mean, std)
    names = groups(sets)
    limit = {"near": arguments.near_limit, "far": arguments.far_limit}
    ood = {n: Batches(sets[n][: limit[g]], None) for g, parts in names.items() for n in parts}
    began = time.time()

    def say(what: str, done: int, total: int | None) -> None:
        if total is not None or done % 2_000 < 500:
            print(f"{time.time() - began:6.0f} s  {what} {done}", flush=True)

    found = tulip_ood.compare(
        model.to(device),
        id_val=Batches(sets["id_val"], sets["id_val_labels"]),
        id_test=Batches(
            sets["id_test"][: arguments.id_limit], sets["id_test_labels"][: arguments.id_limit]
        ),
        ood=ood,
        train=None
        if arguments.train is None
        else Training(arguments.train, mean, std, arguments.train_limit),
        ensemble=[load_network(path)[0].to(device) for path in arguments.ensemble] or None,
        methods="all" if arguments.methods == "all" else arguments.methods.split(","),
        # ODIN's noise is meant for pixels.
        settings={"odin": {"std": tuple(std.tolist())}}
        if arguments.methods == "all" or "odin" in arguments.methods.split(",")
        else None,
        groups={n: g for g, parts in names.items() for n in parts},
        tune={"none": None, "pseudo": "pseudo"}.get(
            arguments.tune, Batches(sets["ood_val"], None) if "ood_val" in sets else None
        ),
        resamples=arguments.resamples,
        seed=arguments.seed,
        progress=say,
    )
    print(found)
    result = {
        "command": " ".join(sys.argv),
        "network": arguments.checkpoint.name,
        "tune": arguments.tune,
        "seconds": round(time.time() - began),
        "versions": {
            "tulip_ood": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        },
        **found.to_dict(),
        "parameters": {
            name: {k: v for k, v in d.report().facts.items() if k in ("parameters", "tuning")}
            for name, d in found.detectors.items()
        },
    }
    arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
