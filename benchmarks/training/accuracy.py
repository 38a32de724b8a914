"""The accuracy of trained networks on the ID test images of OpenOOD's protocol.

python benchmarks/training/accuracy.py --data ROOT --checkpoint cifar10=a.safetensors …
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open

from tulip_ood.data.batches import batches
from tulip_ood.data.root import Root
from tulip_ood.models.spec import load_model


@torch.no_grad()
def accuracy(id_set: str, path: str, root: Root) -> dict[str, object]:
    loaded = load_model(path)
    right = n = 0
    for batch in batches(root.part(id_set, "test").source, loaded.preprocess, batch_size=250):
        assert batch.inputs is not None
        answers = loaded.module(batch.inputs).argmax(dim=1)
        right += int((answers == torch.tensor(batch.labels)).sum())
        n += len(batch.labels)
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    noted = {key: about.get(key) for key in ("seed", "epochs", "best_epoch", "val_accuracy")}
    return {"id_set": id_set, "network": Path(path).stem, **noted, "n": n, "accuracy": right / n}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint", nargs="+", required=True, help="ID set=file")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    arguments = parser.parse_args()
    root = Root.open(arguments.data)
    rows = []
    for each in arguments.checkpoint:
        rows.append(accuracy(*each.split("=", 1), root))
        print(rows[-1], flush=True)
    arguments.out.write_text(json.dumps({"networks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
