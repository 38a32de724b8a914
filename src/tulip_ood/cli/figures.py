"""`tulip reproduce` for figures: parse, draw, say where they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.cli.figure_sources import Out, Seed, SideFiles, ready, say

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.figures.closeness_sides import Sides

__all__ = ["bound_classification", "bound_regression", "closeness"]


def bound_regression(out: Out = Path("figures"), seed: Seed = 0) -> None:
    """Theorem 3.1 on a curve: the bound beside the exact ensemble of infinite networks.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "bound-regression", "--seed", "x"]).exit_code
        2
    """
    ready(out)
    from tulip_ood.figures.bound_regression import Settings, draw

    say(draw(out, Settings(seed=seed)))


def bound_classification(out: Out = Path("figures"), seed: Seed = 0) -> None:
    """Maps of two moons and a spiral: the bound's shape, the ensemble, TULiP on one network.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "bound-classification", "--seed", "x"]).exit_code
        2
    """
    ready(out)
    from tulip_ood.figures.bound_classification import Settings, draw

    typer.echo("training networks on two problems, half a minute", err=True)
    say(draw(out, Settings(seed=seed)))


def closeness(
    model: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="A network of ≤ 100 outputs; default: the demo's."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="SRC", help="ID images: one part is X, another one z."),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option("--ood", metavar="NAME=SRC", help="Further test images z; may be repeated."),
    ] = None,
    images: Annotated[
        int, typer.Option(min=1, max=64, help="Images in X, and in each group of test images.")
    ] = 32,
    sides: SideFiles = None,
    out: Out = Path("figures"),
    seed: Seed = 0,
    resize: Annotated[int | None, typer.Option(help="The shorter side after resizing.")] = None,
    crop: Annotated[int | None, typer.Option(help="The side of the centre crop.")] = None,
    mean: Annotated[str | None, typer.Option(help="Of the channels, as 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Of the channels.")] = None,
    root: options.Root = None,
    trust: options.Trust = False,
    device: options.Device = None,
) -> None:
    """Both sides of assumption A5 on a real network, by exact blocks of its NTK.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "closeness", "--model", "x:y"]).exit_code
        2
    """
    ready(out)
    from tulip_ood.figures.closeness import draw
    from tulip_ood.figures.closeness_sides import Sides

    if sides:
        if model or data or ood:
            raise UsageError("--sides holds what was measured: give it without --model and --data")
        with as_usage():
            kept = [Sides.load(path) for path in sides]
        say(draw(kept, out))
        return
    if (model is None) != (data is None) or (model is None and ood):
        raise UsageError("give --model and --data together, or neither for the demo's network")
    if model is None or data is None:
        network, train, test = _digits(images, seed)
        title = "the demo's digit network"
    else:
        with as_usage():
            from tulip_ood.data.opening import open_sources
            from tulip_ood.models.spec import load_model

            options.check_device(device)
            named = _named(ood or [])
            source = open_sources(data, classes=(), root=root)
            others = {name: open_sources([p], classes=(), root=root) for name, p in named.items()}
            loaded = load_model(model, trust=trust)
            preprocess = options.choose_preprocess(
                loaded.preprocess,
                images=not all(s.ready for s in (source, *others.values())),
                resize=resize,
                crop=crop,
                mean=mean,
                std=std,
                spec=model,
            )
            both = _read(source, preprocess, 2 * images, seed)
            if len(both) < 2:
                raise UsageError(f"{source.name}: A5 needs at least 2 images, one in X and one z")
            train, rest = both[: len(both) // 2], both[len(both) // 2 :]
            test = {"other ID images": rest}
            test |= {name: _read(s, preprocess, images, seed) for name, s in others.items()}
        network, title = loaded.module, model
    say(draw([_measured(network, train, test, title=title, device=device)], out))


def _measured(
    module: "nn.Module",
    train: "Tensor",
    test: "dict[str, Tensor]",
    *,
    title: str,
    device: str | None,
) -> "Sides":
    from tulip_ood.cli.progress import make_progress
    from tulip_ood.figures.closeness_sides import measure_sides
    from tulip_ood.network.network import Network
    from tulip_ood.numerics.tasks import make_task

    with as_usage():
        network = Network(module, make_task("classification"), device=device)
        with make_progress() as bar:
            task = bar.add_task("gradients", total=None)
            return measure_sides(
                network,
                train,
                test,
                title=title,
                progress=lambda done, of: bar.update(task, completed=done, total=of),
            )


def _digits(images: int, seed: int) -> "tuple[nn.Module, Tensor, dict[str, Tensor]]":
    """The demo's network on some of its own training pictures, and pictures of every kind."""
    from tulip_ood.demo.data import load_data
    from tulip_ood.models.digits import train_digit_net

    data = load_data(seed)
    typer.echo(f"training the demo's network on {len(data.train[1])} pictures", err=True)
    network = train_digit_net(*data.train, classes=len(data.class_names), seed=seed)
    test = {"digits 0 to 7": data.test[0], **data.ood}
    # Patches of one photograph lie side by side: take some from everywhere.
    few = {name: x[:: max(1, len(x) // images)][:images] for name, x in test.items()}
    return network, data.train[0][:images], few


def _named(places: list[str]) -> dict[str, str]:
    """NAME=SRC, or a path whose stem is the name."""
    named: dict[str, str] = {}
    for place in places:
        name, equals, path = place.partition("=")
        if not equals or Path(place).exists():
            name, path = Path(place).stem, place
        if name in named:
            raise UsageError(f"two sets are called {name}: name them, as --ood NAME=SRC")
        named[name] = path
    return named


def _read(source: "Source", preprocess: "Preprocess | None", most: int, seed: int) -> "Tensor":
    """Some images of a source, drawn and shuffled; those that cannot be read are left out."""
    import torch

    from tulip_ood.data.batches import batches
    from tulip_ood.data.selection import Selected
    from tulip_ood.numerics.random import permutation

    drawn = permutation(len(source), seed=seed, name="figures.closeness")[:most]
    chosen = drawn.sort().values.tolist()  # a source is read in its own order
    found = [
        batch.inputs
        for batch in batches(Selected(source, chosen), preprocess, batch_size=most)
        if batch.inputs is not None
    ]
    if not found or len({part.shape[1:] for part in found}) > 1:
        raise UsageError(f"{source.name}: none of the images can be read, or they differ in size")
    inputs = torch.cat(found)
    return inputs[permutation(len(inputs), seed=seed, name="figures.closeness.order")]
