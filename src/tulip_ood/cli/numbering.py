"""Which output a class folder stands for: what a command is told, knows, or must find out."""

from typing import TYPE_CHECKING

import typer

from tulip_ood.cli.failing import as_usage
from tulip_ood.cli.fitting import network_refuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.network.network import Network

__all__ = ["check_outputs", "folder_classes"]

_FEW = 4  # inputs that the network is shown to count its outputs


def folder_classes(
    places: "Sequence[str]",
    *,
    given: "Sequence[str] | None",
    known: "Sequence[str] | None",
    outputs: int | None = None,
) -> "tuple[str, ...] | None":
    """The classes for `open_sources`: as the user says, or by the rule of `number_folders`.

    Numbering in sorted order although the network's classes have names is a guess, and said.

    Args:
        places: All labelled data of the command: they must be numbered alike.
        given: From `--classes`.
        known: The names of the network's outputs.
        outputs: How many there are, if that is known.

    Example:
        >>> folder_classes(["val.npz"], given=["cat", "dog"], known=None)
        ('cat', 'dog')
    """
    from tulip_ood.data.opening import all_class_folders, number_folders

    if given is not None:
        return tuple(given)
    folders = all_class_folders(places)
    numbered = number_folders(folders, known=known, outputs=outputs)
    if known and numbered is not None and numbered != tuple(known):
        typer.echo(
            f"class folders are numbered in sorted order: {numbered[0]} is {known[0]!r}, …, "
            f"{numbered[-1]} is {known[-1]!r} (if not: --classes)",
            err=True,
        )
    return numbered


def check_outputs(
    places: "Sequence[str]",
    network: "Network",
    source: "Source",
    preprocess: "Preprocess | None",
) -> None:
    """Refuse class folders, numbered in sorted order, that are more or fewer than the outputs.

    Of a network that does not say what its outputs are, their number shows when it runs: before
    fitting, on the first inputs that can be read.

    Args:
        places: All labelled data of the command.
        network: To be shown a few inputs.
        source: Where these are.
        preprocess: How they are prepared.

    Example:
        >>> import pathlib, tempfile, torch
        >>> import numpy as np
        >>> from PIL import Image
        >>> from tulip_ood.data.opening import open_sources
        >>> from tulip_ood.data.preprocess import Preprocess
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("cat", "dog"):
        ...         pathlib.Path(root, name).mkdir()
        ...         Image.fromarray(np.eye(2, dtype="uint8")).save(f"{root}/{name}/1.png")
        ...     check_outputs([root], Network(model, make_task("classification")),
        ...                   open_sources([root]), Preprocess(2, 2, (0.5,) * 3, (0.5,) * 3))
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: 2 class folders do not fit 3 outputs (cat, dog): give \
the names of all class folders in the order of the network's outputs, one a line (--classes)
    """
    from tulip_ood.data.batches import batches
    from tulip_ood.data.opening import all_class_folders, classes_of_outputs, number_folders

    folders = all_class_folders(places)
    if not folders:
        return
    for batch in batches(source, preprocess, batch_size=_FEW):
        if batch.inputs is None:
            continue
        try:
            outputs = network.probe(batch.inputs).n_outputs
        except RuntimeError as error:
            raise network_refuses(error, batch.inputs) from error
        with as_usage():
            number_folders(folders, outputs=classes_of_outputs(network.task.name, outputs))
        return
