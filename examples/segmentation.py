"""A foreign object in a segmented image: the uncertainty map lights up where it lies.

A tiny U-Net has learned from 48 images to find discs and squares. Then images arrive with a ring, a
star or a cross in them, in the same colours. It calls them disc, square or background, in patches,
and is often sure of it.

    python examples/segmentation.py
"""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import Numbers, main
from shapes import FOREIGN, KNOWN, scenes
from torch import Tensor, nn

import tulip_ood as tulip
from tulip_ood.figures.canvas import COLOURS, canvas
from tulip_ood.numerics.metrics import auroc


def block(inputs: int, outputs: int) -> nn.Module:
    """Convolution, normalisation, ReLU, twice."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
    )


class UNet(nn.Module):
    """Down twice, up twice, 24,000 parameters."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fine, self.middle = block(3, width), block(width, 2 * width)
        self.coarse = block(2 * width, 4 * width)
        self.up, self.last = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1 + len(KNOWN), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 3, SIDE, SIDE]."""
        fine = self.fine(x)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = F.interpolate(self.coarse(F.max_pool2d(middle, 2)), scale_factor=2)
        up = F.interpolate(self.up(torch.cat([coarse, middle], dim=1)), scale_factor=2)
        return self.head(self.last(torch.cat([up, fine], dim=1)))


def train(x: Tensor, y: Tensor, steps: int) -> UNet:
    """AdamW, one cycle."""
    model = UNet()
    optimiser = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (12,))
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def run(seed: int, quick: bool) -> tuple[Numbers, Any]:
    """Train, fit, and ask for every pixel of a foreign object whether it stands out."""
    torch.manual_seed(seed)
    x, y, _ = scenes(48)
    model = train(x, y, steps=10 if quick else 200)
    n = 20 if quick else 30
    val, test = scenes(n), scenes(n)
    odd = {kind: scenes(n, kind) for kind in FOREIGN}
    detectors = {
        "msp": tulip.detectors.make("msp", model, task="dense"),
        "ent": tulip.detectors.make("ent", model, task="dense"),
        # With ε given, only λ and J are searched: a quarter of the passes.
        "tulip": tulip.Tulip(model, task="dense", epsilon=0.01, seed=seed),
    }
    numbers: Numbers = {}
    for name, detector in detectors.items():
        quickly = {"recipe": "balanced"} if quick and name == "tulip" else {}
        detector.fit([val[:2]], **quickly)  # images and classes of their pixels
        answer = detector.predict(test[0])
        there = {kind: detector.score(image)[mask] for kind, (image, _, mask) in odd.items()}
        numbers[name] = {
            "kept": float(answer.accepted.float().mean()),
            "auroc": {kind: auroc(answer.score, scores) for kind, scores in there.items()},
            "refused": {
                kind: float((scores > detector.threshold.value).float().mean())
                for kind, scores in there.items()
            },
        }
    accuracy = float((answer.label == test[1]).float().mean())
    shown = [test, *odd.values()]
    images, masks = (torch.stack([part[i][0] for part in shown]) for i in (0, 2))
    maps = {name: detectors[name].predict(images) for name in ("ent", "tulip")}
    return {"pixels right": accuracy, "methods": numbers}, (images, masks, maps)


def draw(picture: Any, path: Path) -> None:
    """Image, answer, and two maps of uncertainty, for a usual scene and three odd ones."""
    images, masks, maps = picture
    from matplotlib.colors import ListedColormap

    entropy = {"cmap": "magma", "vmin": 0, "vmax": math.log(3)}  # one scale for both
    classes = ListedColormap(["#E9E9E9", COLOURS["blue"], COLOURS["orange"]])
    with canvas(9.6, 10.2) as figure:
        grid = figure.subplots(len(images), 4)
        for row, image in enumerate(images):
            panels = (
                (image.permute(1, 2, 0).clamp(0, 1), {}),
                (maps["ent"].label[row], {"cmap": classes, "vmin": 0, "vmax": 2}),
                (maps["ent"].score[row], entropy),
                (maps["tulip"].score[row], entropy),
            )
            for axes, (content, how) in zip(grid[row], panels, strict=True):
                axes.imshow(content.numpy(), interpolation="nearest", **how)
                if masks[row].any():
                    axes.contour(
                        masks[row].numpy(), levels=[0.5], colors=[COLOURS["sky"]], linewidths=1.6
                    )
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            grid[row, 0].set_ylabel(("nothing foreign", *FOREIGN)[row], fontsize=14)
        names = ("image", "network's answer", "its entropy", "TULiP")
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(name, loc="center")
        figure.savefig(path, format="png")


if __name__ == "__main__":
    warnings.simplefilter("ignore", tulip.TulipWarning)  # findings stand in detector.report()
    main("segmentation", run, draw)
