"""Train OpenOOD's ResNet-18 for 32 × 32 images by its published recipe; resumes where it stopped.

    python benchmarks/data/pack.py --train FOLDER --out train.npz
    python benchmarks/training/run.py --train train.npz --data sets.npz --seed 1 --out FILE

`sets.npz` is what `benchmarks/data/pack.py --root` makes: its validation images choose the epoch.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.models.training import TrainingRecipe, train

# The mean and deviation of the channels, by the number of classes: OpenOOD's for the two CIFARs.
NORMALISATION = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--precision", default="tf32", choices=["tf32", "bfloat16"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with np.load(arguments.train) as packed:
        images = torch.from_numpy(packed["train"])
        labels = torch.from_numpy(packed["train_labels"]).long()
    with np.load(arguments.data) as packed:
        val = (
            torch.from_numpy(packed["id_val"]),
            torch.from_numpy(packed["id_val_labels"]).long(),
        )
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    classes = int(labels.max()) + 1
    model = ResNet18Small(classes, dropout=arguments.dropout)
    mean, std = NORMALISATION[classes]
    began = time.time()

    def say(done: int, of: int, accuracy: float) -> None:
        took = time.time() - began
        print(f"epoch {done} of {of}: {100 * accuracy:.2f} %, {took:.0f} s", flush=True)

    found = train(
        model,
        images,
        labels,
        val=val,
        out=arguments.out,
        recipe=TrainingRecipe(
            epochs=arguments.epochs, mean=mean, std=std, precision=arguments.precision
        ),
        seed=arguments.seed,
        progress=say,
    )
    print(f"kept epoch {found.best_epoch}: {100 * found.accuracy:.2f} % on validation data")


if __name__ == "__main__":
    main()
