"""`tulip train`: OpenOOD's CIFAR networks by the published recipe."""

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.fitting import check_labels
from tulip_ood.cli.progress import make_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tulip_ood.data.protocol import Protocol
    from tulip_ood.data.source import Source

__all__ = ["train"]

SETS = ("cifar10", "cifar100")


def train(
    task: Annotated[str, typer.Argument(metavar="SET", help="cifar10 or cifar100.")],
    data: Annotated[
        list[str],
        typer.Option("--data", metavar="SRC", help="Training images: folder, list, parquet, npz."),
    ],
    val: Annotated[
        list[str],
        typer.Option("--val", metavar="SRC", help="Validation images, to keep the best epoch."),
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The checkpoint to write.")],
    seed: Annotated[int, typer.Option(help="Of the first weights, order, crops and flips.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Times that all images are seen.")] = 100,
    dropout: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Rate of dropout before the last layer; MC-Dropout needs more than 0.",
        ),
    ] = 0.0,
    root: options.Root = None,
    classes: options.Classes = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images in a step.")] = 128,
    precision: Annotated[
        str,
        typer.Option(
            help="On a GPU: tf32 as the published networks, or bfloat16, up to twice as fast."
        ),
    ] = "tf32",
    device: options.Device = None,
    json: options.Json = None,
) -> None:
    """Train a ResNet-18 for 32 × 32 images as OpenOOD does; goes on where it was stopped.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["train", "imagenet"]).exit_code
        2
    """
    target = options.check_place(out, "--out")
    options.check_place(json, "--json")
    if task not in SETS:
        raise UsageError(f"unknown set {task!r}; choose from {', '.join(SETS)}")
    with as_usage():
        import torch

        from tulip_ood.data.opening import open_sources, read_classes
        from tulip_ood.data.protocol import PROTOCOLS
        from tulip_ood.models.resnet import ResNet18Small
        from tulip_ood.models.training import TrainingRecipe
        from tulip_ood.models.training import train as run
        from tulip_ood.numerics.random import check_seed

        options.check_device(device)
        check_seed(seed)
        names = None if classes is None else read_classes(classes)
        sources = [open_sources(places, classes=names, root=root) for places in (data, val)]
        for source, option in zip(sources, ("--data", "--val"), strict=True):
            check_labels(source, option, "training needs the label of every input")
    protocol = PROTOCOLS[task]
    with as_usage():
        recipe = TrainingRecipe(
            epochs=epochs,
            batch_size=batch_size,
            mean=protocol.mean,
            std=protocol.std,
            precision=precision,
        )
    (images, labels), held_out = (_read(source, protocol) for source in sources)
    with _seeded(seed):
        model = ResNet18Small(protocol.classes, dropout=dropout)
    done = 0
    with make_progress() as bar:
        training = bar.add_task("training", total=epochs)

        def say(epoch: int, of: int, accuracy: float) -> None:
            nonlocal done
            done = epoch
            text = f"epoch {epoch}: {100 * accuracy:.2f} % on validation images"
            bar.update(training, completed=epoch, description=text)

        try:
            with as_usage():
                found = run(
                    model,
                    images,
                    labels,
                    val=held_out,
                    out=target,
                    recipe=recipe,
                    seed=seed,
                    device=None if device is None else torch.device(device),
                    progress=say,
                )
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped after epoch {done} of {epochs}; the same command goes on from the last "
                f"file (every fifth epoch)"
            ) from None
    typer.echo(
        f"kept epoch {found.best_epoch} of {epochs}: {100 * found.accuracy:.2f} % on "
        f"{len(held_out[1]):,} validation images"
    )
    typer.echo(f"wrote {target}")
    shown = {"checkpoint": str(target), "best_epoch": found.best_epoch}
    options.write_json(json, {**shown, "accuracy": found.accuracy, "history": list(found.history)})


@contextlib.contextmanager
def _seeded(seed: int) -> "Iterator[None]":
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _read(source: "Source", protocol: "Protocol") -> "tuple[Tensor, Tensor]":
    """All images, uint8 [N, 32, 32, 3], and their labels."""
    import numpy as np
    import torch

    if source.ready:
        raise UsageError(
            f"{source.name} is normalised already (npz with floating x): training crops and flips "
            f"images as they are. Give uint8 images"
        )
    images, labels = [], []
    with make_progress() as bar:
        reading = bar.add_task(f"reading {source.name}", total=len(source))
        for row, raw in source.read():
            images.append(protocol.preprocess.pixels(raw))
            labels.append(row.label)
            bar.advance(reading, 1)
    numbers = torch.as_tensor(np.asarray(labels)).long()
    classes = protocol.classes
    if int(numbers.min()) < 0 or int(numbers.max()) >= classes:
        raise UsageError(
            f"labels of {source.name} go from {int(numbers.min())} to {int(numbers.max())}; a "
            f"network with {classes} outputs needs 0 to {classes - 1}"
        )
    return torch.from_numpy(np.stack(images)), numbers
