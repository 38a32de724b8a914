"""`tulip reproduce` for figures that are drawn from passes of a network on the sets at hand."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import as_usage
from tulip_ood.cli.figure_sources import (
    Checkpoint,
    Data,
    IdSet,
    Networks,
    NetworkSource,
    Out,
    ready,
    say,
    with_networks,
)
from tulip_ood.cli.progress import make_progress

if TYPE_CHECKING:
    from tulip_ood.figures.canvas import Drawn

__all__ = ["OF_NETWORKS", "draw_of_networks", "draw_timing", "network_command", "timing"]

# By the command's name: the file in `figures` that draws it, and what it shows.
OF_NETWORKS = {
    "lambda-sweep": ("lambda_sweep", "S alone as a detector over λ, near and far."),
    "bound-histogram": ("bound_histogram", "How S lies for ID, near and far images."),
    "msp-shift": ("msp_shift", "The network's confidence before and after TULiP."),
    "enhancement": ("enhancement", "MSP, ENT, GEN, EBO, MLS on the envelope, over J."),
    "ablation": ("ablation", "ε × λ, with and without calibration of J."),
}
_TIMED_VALIDATION = 32  # images that detectors are fitted on before they are timed


def draw_of_networks(source: NetworkSource, name: str) -> None:
    """Draw one of `OF_NETWORKS`.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "lambda-sweep"]).exit_code
        2
    """
    source.need()
    ready(source.out)
    file = importlib.import_module(f"tulip_ood.figures.{OF_NETWORKS[name][0]}")
    found = source.measure(getattr(file, "EPSILONS", ()))
    say(file.draw(found, source.out))


def network_command(name: str) -> Callable[..., None]:
    """The command that draws one of `OF_NETWORKS`.

    Example:
        >>> network_command("ablation").__doc__
        'ε × λ, with and without calibration of J.'
    """

    def draw(source: NetworkSource) -> None:
        draw_of_networks(source, name)

    draw.__doc__ = OF_NETWORKS[name][1]
    return with_networks(draw)


def timing(
    data: Data = None,
    networks: Networks = None,
    checkpoint: Checkpoint = None,
    out: Out = Path("figures"),
    id_set: IdSet = None,
    limit: Annotated[int, typer.Option(min=1, max=10**6, help="Images that are timed.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the least time counts.")] = 3,
    device: options.Device = None,
    trust: options.Trust = False,
) -> None:
    """Time of TULiP against EBO, on this machine.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "timing"]).exit_code
        2
    """
    named = (*(checkpoint or []), *(networks or []))
    source = NetworkSource(data, named, out, id_set, limit, device=device, trust=trust)
    source.need()
    ready(out)
    say(draw_timing(source, images=limit, repeats=repeats))


def draw_timing(source: NetworkSource, *, images: int, repeats: int = 3) -> "Drawn":
    """Time the first network of a source, and draw it.

    Example:
        >>> draw_timing(NetworkSource(None, ()), images=8)
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: this figure is drawn from passes of a network: give \
--data ROOT (see tulip data check) and --checkpoint FILE (see tulip train)
    """
    data = source.need()
    with as_usage():
        import torch

        from tulip_ood.benchmark.pieces import labelled_batches, pieces_of
        from tulip_ood.data.root import Root
        from tulip_ood.figures.measured import open_for
        from tulip_ood.figures.timing import contenders, draw, time_detectors

        options.check_device(source.device)
        root = Root.open(data)
        name, network = open_for(
            source.networks[0],
            root,
            id_set=source.id_set,
            device=source.device,
            trust=source.trust,
        )
        val = root.part(name, "val").limited(_TIMED_VALIDATION)
        test = root.part(name, "test").limited(images)
        (piece, *_) = pieces_of(test, network.preprocess, test.digest())
        batches = list(labelled_batches(val, network.preprocess))
        x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        with make_progress() as bar:
            task = bar.add_task("fitting", total=None)
            rows = time_detectors(
                contenders(network.module, (x, y)),
                piece.inputs,
                repeats=repeats,
                progress=lambda what, done, of: bar.update(
                    task, description=what, completed=done, total=of
                ),
            )
        return draw(rows, source.out, title=network.name)
