"""Networks for tasks beyond CIFAR's: a ViT, and for digits, leaves, signs, scenes and so on.

    python benchmarks/auto/networks.py vit|digits|leaves|signs|… --data FOLDER --seed 0 …

Trains one on a GPU in about a minute and writes its weights (float32, safetensors). With
`--published FILE`, the weights of EfficientNet-Lite0, that network goes on from them instead (five
minutes on two cores).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tasks import divided, grey, unpack
from torch import Tensor, nn
from torch.nn import functional as F

from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.numerics.random import permutation

# Of the tasks that are packs.
CLASSES = {
    "leaves": 29,
    "signs": 35,
    "scenes": 24,
    "birds": 32,
    "butterflies": 48,
    "cards": 43,
    "simpsons": 16,
    "instruments": 26,
    "pets": 30,
    "capitals": 21,
    "sports": 32,
    "plankton": 32,
    "dishes": 28,
    "hiragana": 37,
}
LAST = "_fc."  # EfficientNet's last layer
PARTS = (0.8, 0.88)  # of a pack's images: where validation and test begin
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def make(kind: str) -> nn.Module:
    """An untrained network, the one that a task mostly has."""
    if kind == "vit":
        from torchvision.models import VisionTransformer

        return VisionTransformer(
            image_size=32, patch_size=4, num_layers=6, num_heads=4, hidden_dim=256, mlp_dim=768,
            num_classes=10,
        )  # fmt: skip
    if kind in CLASSES:
        network = ResNet18Small(CLASSES[kind])
        network.conv1.stride = (2, 2)  # 64 or 48 pixels instead of 32
        return network
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def lite(name: str, **other: int) -> nn.Module:
    """EfficientNet-Lite by its authors' package, untrained."""
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name(f"efficientnet-{name}", **other)
    return network


def tuned(kind: str, weights: dict[str, Tensor] | None = None) -> nn.Module:
    """EfficientNet-Lite0 with a last layer for a pack's classes; `weights` have another."""
    network = lite("lite0", num_classes=CLASSES[kind])
    if weights is not None:
        others = {name: value for name, value in weights.items() if not name.startswith(LAST)}
        network.load_state_dict({**network.state_dict(), **others})
    return network


def as_lites_want(x: Tensor) -> Tensor:
    """As the published weights of EfficientNet-Lite were trained."""
    return (255 * x - 127) / 128


def normalised(x: Tensor) -> Tensor:
    """As CIFAR's images are for its networks."""
    mean, std = (torch.tensor(v, device=x.device).reshape(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def material(kind: str, folder: Path) -> tuple[Tensor, Tensor]:
    """Training images in [0, 1] (uint8 stays uint8) and labels."""
    if kind == "digits":
        with np.load(folder / "digits.npz") as found:
            x, y = grey(found["x"]), torch.from_numpy(found["y"].astype(np.int64))
        own = permutation(len(x), seed=0, name="parts")[:7000]
        return x[own], y[own]
    if kind in CLASSES:
        images, y = unpack(folder / f"{kind}.npz")
        own, _, _ = divided(folder / f"{kind}.npz", PARTS)
        return torch.from_numpy(images[own]).permute(0, 3, 1, 2).float() / 255, y[own]
    with np.load(folder / "train-cifar10.npz") as found:  # by benchmarks/data/pack.py --train
        x = torch.from_numpy(found["train"]).permute(0, 3, 1, 2).float() / 255
        return x, torch.from_numpy(found["train_labels"].astype(np.int64))


def augmented(x: Tensor, kind: str) -> Tensor:
    """Shifted by up to an eighth; mirrored, and turned where that keeps the label."""
    if kind == "digits":
        return x
    if kind in ("signs", "cards", "capitals", "hiragana"):
        return seen_again(x)
    side, pad = x.shape[-1], x.shape[-1] // 8
    wide = F.pad(x, [pad] * 4)
    at = torch.randint(0, 2 * pad + 1, (len(x), 2), device=x.device)
    along = torch.arange(side, device=x.device)
    rows = (at[:, :1] + along)[:, None, :, None]
    columns = (at[:, 1:] + along)[:, None, None, :]
    index = torch.arange(len(x), device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    x = wide[index, channel, rows, columns]
    mirrored = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    x = torch.where(mirrored, x.flip(-1), x)
    if kind in ("leaves", "scenes", "plankton"):
        turned = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
        x = torch.where(turned, x.transpose(-1, -2).flip(-1), x)
    return x


def seen_again(x: Tensor) -> Tensor:
    """From elsewhere in another light, never mirrored: a mirrored sign or letter is another one."""
    turn, zoom, right, down, light = (2 * torch.rand(5, len(x), device=x.device) - 1).unbind()
    turn, zoom = 0.2 * turn, 1 + 0.15 * zoom  # radians, and times
    cos, sin = zoom * turn.cos(), zoom * turn.sin()
    view = torch.stack([cos, -sin, 0.2 * right, sin, cos, 0.2 * down], 1).view(-1, 2, 3)
    grid = F.affine_grid(view, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return (x * (1.2 * light).exp().view(-1, 1, 1, 1)).clamp(0, 1)


def train(
    kind: str, folder: Path, seed: int, epochs: int, device: str, published: Path | None = None
) -> nn.Module:
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    x, y = (part.to(device) for part in material(kind, folder))
    network, prepare, fastest = make(kind), normalised, 0.05
    if published is not None:
        weights = torch.load(published, map_location="cpu", weights_only=True)
        network, prepare, fastest = tuned(kind, weights), as_lites_want, 0.02
    network.to(device, memory_format=torch.channels_last).train()
    transformer, half = kind == "vit", device == "cuda" and kind != "digits"
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
        if transformer
        else torch.optim.SGD(
            network.parameters(), lr=fastest, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
    )
    batch = 512 if transformer else 128
    steps = epochs * (len(x) // batch)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=steps,
        pct_start=0.1,
    )  # fmt: skip
    for epoch in range(epochs):
        order, right = torch.randperm(len(x), device=device), torch.zeros((), device=device)
        for begin in range(0, len(x) - batch + 1, batch):
            own = order[begin : begin + batch]
            inputs = augmented(x[own], kind)
            if kind != "digits":
                inputs = prepare(inputs)
            with torch.autocast(device, torch.bfloat16, enabled=half):
                logits = network(inputs.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits.float(), y[own])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rate.step()
            right += (logits.argmax(-1) == y[own]).sum()
        if epoch % 5 == 4 or epoch == epochs - 1:
            print(f"{kind} {seed}: epoch {epoch + 1}, {float(right) / len(x):.4f}", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["vit", "digits", *CLASSES])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--published", type=Path, help="weights of EfficientNet-Lite0, for packs")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.published is not None and given.kind not in CLASSES:
        parser.error(f"--published is for packs ({', '.join(CLASSES)}), got {given.kind}")
    network = train(given.kind, given.data, given.seed, given.epochs, given.device, given.published)
    save_file({k: v.contiguous().cpu() for k, v in network.state_dict().items()}, given.out)


if __name__ == "__main__":
    main()
