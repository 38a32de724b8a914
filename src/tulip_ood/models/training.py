"""OpenOOD's recipe for its CIFAR networks: SGD, cosine, crops and flips, all data on the device.

Everything random is drawn from the seed and the number of the epoch, so a run that was stopped goes
on to the very network that it would have made. On CUDA a step runs as one captured graph: the
processor is not asked about anything until the epoch is over.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.models.architectures import architecture_of, dropout_of
from tulip_ood.network.files import reading, save_tensors
from tulip_ood.numerics.random import integers, permutation
from tulip_ood.wording import counted

__all__ = ["Trained", "TrainingRecipe", "train"]

Progress = Callable[[int, int, float], None]  # (epochs done, of how many, accuracy on val)


@dataclass(frozen=True)
class TrainingRecipe:
    """How a network is trained; the defaults are OpenOOD's for CIFAR.

    Attributes:
        epochs: Times that all images are seen.
        batch_size: Images in a step; what is left over at the end of an epoch waits for another.
        learning_rate: At the beginning; it falls to `last_rate` along a cosine, step by step.
        last_rate: At the end.
        momentum: Of Nesterov's kind.
        weight_decay: On all parameters.
        padding: Images are cropped at random from this much around them.
        mean: Of the channels, for normalisation.
        std: Of the channels.
        precision: On an accelerator, `"tf32"` (float32 whose products are rounded to 10 bits, as
            the published networks were trained) or `"bfloat16"` (7 bits, up to twice as fast); a
            CPU always computes in float32.

    Example:
        >>> TrainingRecipe(epochs=10).rate(step=0, steps=100)
        0.1
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.1
    last_rate: float = 1e-6
    momentum: float = 0.9
    weight_decay: float = 5e-4
    padding: int = 4
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)
    precision: str = "tf32"

    def __post_init__(self) -> None:
        if self.precision not in ("tf32", "bfloat16"):
            raise InputError(f"precision must be 'tf32' or 'bfloat16', got {self.precision!r}")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step."""
        share = (1.0 + math.cos(math.pi * step / steps)) / 2
        return self.last_rate + (self.learning_rate - self.last_rate) * share


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Attributes:
        best_epoch: The epoch whose weights were kept.
        accuracy: On validation data, with these weights.
        history: The accuracy on validation data after each epoch.

    Example:
        >>> Trained(2, 0.9, (0.8, 0.9)).best_epoch
        2
    """

    best_epoch: int
    accuracy: float
    history: tuple[float, ...]


class _Batches:
    """Crops and flips of images that stay on the device, as uint8."""

    def __init__(self, images: Tensor, labels: Tensor, recipe: TrainingRecipe, seed: int) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != len(recipe.mean):
            raise InputError(
                f"training images must be uint8 [N, H, W, {len(recipe.mean)}], got "
                f"{images.dtype} {list(images.shape)}"
            )
        if len(images) != len(labels) or len(images) < recipe.batch_size:
            raise InputError(
                f"got {counted(len(images), 'image')} and {counted(len(labels), 'label')}: as many "
                f"of both are needed, and at least one batch of {recipe.batch_size}"
            )
        self.recipe, self._seed = recipe, seed
        self.labels = labels
        self.side = images.shape[1]
        p = recipe.padding
        self._padded = F.pad(images.permute(0, 3, 1, 2), (p, p, p, p))
        scale = torch.tensor([1 / (255 * s) for s in recipe.std], device=images.device)
        shift = torch.tensor(recipe.mean, device=images.device) / torch.tensor(
            recipe.std, device=images.device
        )
        self._scale, self._shift = scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)
        self._steps = torch.arange(self.side, device=images.device)
        self.per_epoch = len(images) // recipe.batch_size

    def epoch(self, number: int) -> Tensor:
        """What each step of an epoch takes, [steps, 4, batch]: image, row, column, flip."""
        n, room = len(self.labels), 2 * self.recipe.padding + 1
        order = permutation(n, seed=self._seed, name=f"train/order/{number}")
        drawn = [order]
        for name, high in (("row", room), ("column", room), ("flip", 2)):
            drawn.append(integers((n,), high, seed=self._seed, name=f"train/{name}", index=number))
        used = self.per_epoch * self.recipe.batch_size
        table = torch.stack(drawn)[:, :used]
        return table.reshape(4, self.per_epoch, -1).transpose(0, 1).contiguous()

    def make(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised crops [B, C, H, W] and labels of one step."""
        image, row, column, flip = chosen
        rows = row[:, None] + self._steps
        forward, backward = self._steps, self._steps.flip(0)
        columns = column[:, None] + torch.where(flip[:, None] == 1, backward, forward)
        crops = self._padded[
            image[:, None, None, None],
            torch.arange(self._padded.shape[1], device=image.device)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return self.normalised(crops), self.labels[image]

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 [B, C, H, W] as the network takes them."""
        x = images.float() * self._scale - self._shift
        return x.contiguous(memory_format=torch.channels_last)


class _Step:
    """One step of SGD with Nesterov momentum, captured as a graph on CUDA."""

    def __init__(self, model: nn.Module, batches: _Batches, device: torch.device) -> None:
        self._model, self._batches, self._device = model, batches, device
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.momenta = [torch.zeros_like(p) for p in self._parameters]
        self.rate = torch.zeros((), device=device)
        size = batches.recipe.batch_size
        self._chosen = torch.zeros(4, size, dtype=torch.int64, device=device)
        self._graph: Any = None

    def _run(self) -> None:
        x, y = self._batches.make(self._chosen)
        half = self._device.type != "cpu" and self._batches.recipe.precision == "bfloat16"
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=half):
            logits = self._model(x)
        loss = F.cross_entropy(logits.float(), y)
        gradients = list(torch.autograd.grad(loss, self._parameters))
        recipe = self._batches.recipe
        with torch.no_grad():
            torch._foreach_add_(gradients, self._parameters, alpha=recipe.weight_decay)
            torch._foreach_mul_(self.momenta, recipe.momentum)
            torch._foreach_add_(self.momenta, gradients)
            torch._foreach_add_(gradients, self.momenta, alpha=recipe.momentum)
            torch._foreach_mul_(gradients, -self.rate)
            torch._foreach_add_(self._parameters, gradients)

    def _capture(self) -> None:
        """Warm up without a trace, then record."""
        held = [*self._parameters, *self.momenta, *self._model.buffers()]
        before = [t.detach().clone() for t in held]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._run()
        with torch.no_grad():
            for t, value in zip(held, before, strict=True):
                t.copy_(value)

    def __call__(self, chosen: Tensor, rate: float) -> None:
        """Take one step."""
        self._chosen.copy_(chosen)
        self.rate.fill_(rate)
        if self._device.type == "cuda":
            if self._graph is None:
                self._capture()
            self._graph.replay()
        else:
            self._run()


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    val: tuple[Tensor, Tensor],
    out: str | Path,
    recipe: TrainingRecipe | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    save_every: int = 5,
    progress: Progress | None = None,
) -> Trained:
    """Train a network, keep its best weights on validation data, and write them to a file.

    Args:
        model: Freshly made; it is left with the best weights.
        images: uint8, [N, H, W, C].
        labels: [N].
        val: Images and labels to choose the best epoch on.
        out: The safetensors file to write; beside it lies `….resume` until training is over.
        recipe: How.
        seed: Of the order of the images, the crops and the flips (not of the first weights).
        device: Where; by default CUDA if there is any.
        save_every: Epochs between the files to go on from.
        progress: Called after every epoch with (done, of how many, accuracy).

    Example:
        >>> import tempfile
        >>> x, y = torch.randint(256, (64, 8, 8, 3), dtype=torch.uint8), torch.arange(64) % 2
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ...                     nn.Linear(4, 2))
        >>> recipe = TrainingRecipe(epochs=2, batch_size=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = train(net, x, y, val=(x, y), out=f"{folder}/net.safetensors",
        ...                  recipe=recipe, device="cpu")
        >>> len(done.history)
        2
    """
    recipe = recipe or TrainingRecipe()
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device if device is not None else chosen)
    model.to(where, memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = _Batches(images.to(where), labels.to(where), recipe, seed)
    step = _Step(model, batches, where)
    run = _Run(Path(out), model, step, {"recipe": _plain(recipe), "seed": seed, "n": len(images)})
    first = run.resume()
    steps = recipe.epochs * batches.per_epoch
    for epoch in range(first, recipe.epochs):
        model.train()
        for i, taken in enumerate(batches.epoch(epoch).to(where)):
            step(taken, recipe.rate(epoch * batches.per_epoch + i, steps))
        run.judge(_accuracy(model, batches, val, where))
        if (epoch + 1) % save_every == 0 and epoch + 1 < recipe.epochs:
            run.save()
        if progress is not None:
            progress(epoch + 1, recipe.epochs, run.history[-1])
    return run.finish()


def _plain(recipe: TrainingRecipe) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(recipe).items()}


@torch.no_grad()
def _accuracy(
    model: nn.Module, batches: _Batches, val: tuple[Tensor, Tensor], device: torch.device
) -> float:
    model.eval()
    right = 0
    for x, y in zip(val[0].split(500), val[1].split(500), strict=True):
        images = batches.normalised(x.to(device).permute(0, 3, 1, 2))
        right += int((model(images).argmax(dim=1) == y.to(device)).sum())
    return right / len(val[1])


class _Run:
    """What is kept of a training run: the best weights, and all that is needed to go on."""

    def __init__(self, out: Path, model: nn.Module, step: _Step, identity: dict[str, Any]) -> None:
        self._out, self._model, self._step, self._identity = out, model, step, identity
        self._file = out.with_name(f"{out.name}.resume")
        self.history: list[float] = []
        self._best: dict[str, Tensor] = {}

    def judge(self, accuracy: float) -> None:
        """Note an epoch; the first of the best ones is kept."""
        if not self.history or accuracy > max(self.history):
            self._best = {n: t.detach().clone() for n, t in self._model.state_dict().items()}
        self.history.append(accuracy)

    def save(self) -> None:
        """Write everything that going on needs."""
        tensors = {f"model.{n}": t for n, t in self._model.state_dict().items()}
        tensors |= {f"best.{n}": t for n, t in self._best.items()}
        tensors |= {f"momentum.{i}": t for i, t in enumerate(self._step.momenta)}
        about = {"format": "tulip-training-1", "history": self.history, **self._identity}
        held = {n: t.detach().cpu().clone() for n, t in tensors.items()}
        save_tensors(self._file, held, {"tulip": json.dumps(about)})

    def resume(self) -> int:
        """Take up a run that was stopped; the number of epochs that are done."""
        if not self._file.is_file():
            return 0
        with reading(self._file, "a training run to go on with"):
            with safe_open(self._file, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("tulip", "{}"))
                found = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
            history = about.pop("history", [])
        if about != {"format": "tulip-training-1", **self._identity}:
            raise FileFormatError(
                f"{self._file} belongs to another training run (recipe, seed or data differ): "
                f"remove it, or write to another place"
            )
        for prefix, target in (("model.", self._model.state_dict()), ("best.", self._best)):
            own = {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}
            if prefix == "model.":
                self._model.load_state_dict(own)
            else:
                target.update(own)
        for i, momentum in enumerate(self._step.momenta):
            momentum.copy_(found[f"momentum.{i}"])
        self.history = [float(v) for v in history]
        return len(self.history)

    def finish(self) -> Trained:
        """Write the best weights, and forget how to go on."""
        self._model.load_state_dict(self._best)
        self._model.eval()
        accuracy = max(self.history)
        best = self.history.index(accuracy) + 1
        recipe = self._identity["recipe"]
        about = {
            "arch": architecture_of(self._model),
            "classes": str(_width(self._model)),
            "mean": ",".join(map(str, recipe["mean"])),
            "std": ",".join(map(str, recipe["std"])),
            "dropout": str(dropout_of(self._model)),  # to be built with it again: MC-Dropout
            "seed": str(self._identity["seed"]),
            "epochs": str(len(self.history)),
            "best_epoch": str(best),
            "val_accuracy": f"{accuracy:.4f}",
        }
        weights = {n: t.detach().cpu().clone() for n, t in self._best.items()}
        save_tensors(self._out, weights, about)
        self._file.unlink(missing_ok=True)
        return Trained(best, accuracy, tuple(self.history))


def _width(model: nn.Module) -> int:
    last = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return last[-1].out_features if last else 0
