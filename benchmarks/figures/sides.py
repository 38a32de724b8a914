"""Both sides of A5 on CIFAR networks, for `tulip reproduce closeness --sides`.

    python benchmarks/figures/sides.py --data ROOT --checkpoint A --images 64 --device cuda --out F

X are training images (pick.py puts some into the root), z are test images, near and far OOD.
Gradients of X are held together: o × 45 MB an image of a ResNet-18.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from tulip_ood.data.batches import batches
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Root
from tulip_ood.figures.closeness_sides import measure_sides
from tulip_ood.figures.labels import id_name
from tulip_ood.figures.measured import open_for
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

FAR = ("svhn", "texture", "mnist")
FREE = 0.75  # of the GPU's memory may hold gradients of X


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    started = time.perf_counter()
    root = Root.open(given.data)
    id_set, opened = open_for(given.checkpoint, root, device=given.device)
    near = [each.name for each in protocol_of(id_set).in_group("near")]

    def images(role: str) -> Tensor:
        part = root.part(id_set, role).limited(given.images)
        (batch,) = batches(part.source, opened.preprocess, batch_size=given.images)
        assert batch.inputs is not None
        return batch.inputs

    test = {f"{id_name(id_set)} test images": images("test")}
    test |= {f"{id_name(name)} (near)": images(name) for name in near}
    test |= {f"{id_name(name)} (far)": images(name) for name in FAR}
    network = Network(opened.module, make_task("classification"))
    memory = 2 << 30
    if network.device.type == "cuda":
        memory = int(FREE * torch.cuda.mem_get_info()[0])
    title = f"{id_name(id_set)} ResNet-18 ({opened.name})"
    sides = measure_sides(network, images("train"), test, title=title, memory=memory)
    sides.save(given.out)
    for name, each in sides.groups.items():
        print(name, int(each.holds.sum()), len(each.holds), flush=True)
    print(f"{time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
