"""`tulip compare`: which detector is best for this network, on the user's own data?"""

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.fitting import BATCH, check_labels, network_refuses
from tulip_ood.cli.numbering import check_outputs, folder_classes
from tulip_ood.cli.progress import make_progress
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from tulip_ood.benchmark.entries import Entry
    from tulip_ood.data.batches import Unreadable
    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.numerics.tasks import Task

__all__ = ["compare"]

_TO_JUDGE = "they tell the network's errors, by which methods are judged, too (AURC)"
_OODS = "OOD inputs, as NAME=SRC or SRC; may be given several times"


def compare(
    model: options.Model,
    id_val: Annotated[
        list[str],
        typer.Option(
            "--id-val", metavar="SRC", help="Labelled data to fit on, which training has not seen."
        ),
    ],
    id_test: Annotated[
        list[str],
        typer.Option("--id-test", metavar="SRC", help="Other labelled data to judge on."),
    ],
    ood: Annotated[list[str] | None, typer.Option(metavar="SRC", help=f"{_OODS}.")] = None,
    near: Annotated[
        list[str] | None, typer.Option(metavar="SRC", help="The same, reported as near OOD.")
    ] = None,
    far: Annotated[
        list[str] | None, typer.Option(metavar="SRC", help="The same, reported as far OOD.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC", help="The training data: adds the second track."),
    ] = None,
    ensemble: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Further networks, for an ensemble.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="all, or names with commas, with settings in brackets: "
            "msp,tulip&knn,tulip\\[recipe=balanced]."
        ),
    ] = "all",
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC", help="OOD inputs to choose parameters on, or: pseudo."),
    ] = None,
    resamples: Annotated[int, typer.Option(min=20, help="Of the bootstrap.")] = 200,
    seed: Annotated[int, typer.Option(help="Of noise, splits and bootstrap.")] = 0,
    task: Annotated[str, typer.Option(help="classification, binary, multilabel or regression.")] = (
        "classification"
    ),
    resize: Annotated[int | None, typer.Option(help="The shorter side after resizing.")] = None,
    crop: Annotated[int | None, typer.Option(help="The side of the centre crop.")] = None,
    mean: Annotated[str | None, typer.Option(help="Of the channels, as 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Of the channels.")] = None,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    workers: options.Workers = None,
    trust: options.Trust = False,
    json: options.Json = None,
) -> None:
    """Fit every detector on the same data, judge all on the same images, and say which is best.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["compare", "resnet50"]).exit_code
        2
    """
    options.check_place(json, "--json")
    with as_usage():
        from tulip_ood.benchmark.comparing import compare as run
        from tulip_ood.benchmark.entries import parse_entries
        from tulip_ood.data.opening import open_sources, read_classes
        from tulip_ood.models.spec import load_model
        from tulip_ood.network.network import Network
        from tulip_ood.numerics.random import check_seed
        from tulip_ood.numerics.tasks import make_task

        options.check_device(device)
        check_seed(seed)
        entries = parse_entries(methods)
        loaded = load_model(model, trust=trust)
        others = [load_model(spec, trust=trust).module for spec in ensemble or []]
        labelled = [*id_val, *id_test, *(train or [])]
        given = None if classes is None else read_classes(classes)
        names = folder_classes(labelled, given=given, known=loaded.classes)
        sources = {
            "id_val": open_sources(id_val, classes=names, root=root),
            "id_test": open_sources(id_test, classes=names, root=root),
        }
        if train:
            sources["train"] = open_sources(train, classes=names, root=root)
        for role, source in sources.items():
            why = (_TO_JUDGE,) if role == "id_test" else ()
            check_labels(source, f"--{role.replace('_', '-')}", *why)
        named, groups = _named(ood or [], near or [], far or [])
        outside = {
            name: open_sources([place], classes=(), root=root) for name, place in named.items()
        }
        pseudo = tune == ["pseudo"]
        if tune and not pseudo:
            sources["tune"] = open_sources(tune, classes=(), root=root)
        preprocess = options.choose_preprocess(
            loaded.preprocess,
            images=not all(s.ready for s in (*sources.values(), *outside.values())),
            resize=resize,
            crop=crop,
            mean=mean,
            std=std,
            spec=model,
        )
        meaning = make_task(task)
        _check_methods(entries, loaded.module, meaning, tune=None if pseudo else tune)
    if given is None and loaded.classes is None and names is not None:
        check_outputs(
            labelled,
            Network(loaded.module, meaning, device=device),
            sources["id_val"],
            preprocess,
        )
    bad: dict[str, int] = {}  # by what an input is for: sources may share a name
    loaders: dict[str, Any] = {
        role: _Loader(source, preprocess, role, bad, workers, labelled=role != "tune")
        for role, source in sources.items()
    }
    judged = {
        name: _Loader(source, preprocess, f"ood/{name}", bad, workers, labelled=False)
        for name, source in outside.items()
    }
    if pseudo:
        loaders["tune"] = "pseudo"
    with make_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = bar.add_task("starting", total=None)

        def say(what: str, done: int, total: int | None) -> None:
            bar.update(running, description=what, completed=done, total=total)

        try:
            found = run(
                loaded.module,
                ood=judged,
                ensemble=others or None,
                methods=[str(entry) for entry in entries],
                groups=groups,
                # ODIN's noise is meant for pixels, not for what normalisation makes of them.
                settings=_settings(preprocess, entries),
                resamples=resamples,
                seed=seed,
                batch_size=batch_size,
                progress=say,
                task=task,
                device=device,
                **loaders,
            )
        except KeyboardInterrupt:
            raise Stopped("stopped; nothing was written") from None
        except RuntimeError as error:
            raise network_refuses(error, next(iter(loaders["id_val"]))[0]) from error
    typer.echo(str(found))
    for role, count in bad.items():
        typer.echo(f"{counted(count, 'input')} of {role} could not be read: left out", err=True)
    options.write_json(json, {**found.to_dict(), "unreadable": bad})


def _check_methods(
    entries: "list[Entry]", module: "nn.Module", task: "Task", *, tune: list[str] | None
) -> None:
    """Refuse what stands in brackets and cannot be, before anything is read."""
    from tulip_ood.network.network import Network

    for entry in entries:
        if entry.fitting.get("tune") == "ood" and not tune:
            raise UsageError(f"--methods {entry}: name the OOD inputs to tune on with --tune")
    carrying = [entry for entry in entries if entry.settings]
    if carrying:
        network = Network(module, task)
        for entry in carrying:
            entry.check_settings(network)


def _settings(preprocess: "Preprocess | None", entries: "list[Entry]") -> dict[str, Any]:
    if preprocess is None:
        return {}
    return {str(entry): {"std": preprocess.std} for entry in entries if entry.method == "odin"}


def _named(
    ood: "list[str]", near: "list[str]", far: "list[str]"
) -> "tuple[dict[str, str], dict[str, str]]":
    """OOD sets by name, and the groups of those that have one."""
    from pathlib import Path

    named: dict[str, str] = {}
    groups: dict[str, str] = {}
    for group, places in (("", ood), ("near", near), ("far", far)):
        for place in places:
            name, equals, path = place.partition("=")
            if not equals or Path(place).exists():
                name, path = Path(place).stem, place
            if not name or not path:
                raise UsageError(f"OOD inputs are named as NAME=SRC or SRC, got {place!r}")
            if name in named:
                raise UsageError(f"two OOD sets are called {name}: name them, as --ood NAME=SRC")
            named[name] = path
            if group:
                groups[name] = group
    if not named:
        raise UsageError(
            "there is nothing to judge on: give OOD inputs with --ood, --near or --far"
        )
    return named, groups


class _Loader:
    """A loader that can be read again, of inputs alone or with their labels.

    Counts in `bad`, under its role, what cannot be read.
    """

    def __init__(
        self,
        source: "Source",
        preprocess: "Preprocess | None",
        role: str,
        bad: dict[str, int],
        workers: int | None,
        *,
        labelled: bool,
    ) -> None:
        self._source, self._preprocess = source, preprocess
        self._role, self._bad, self._labelled = role, bad, labelled
        self._workers = workers
        from tulip_ood.data.vanished import there

        self._folders = there(source.folders())

    def __iter__(self) -> "Iterator[Tensor | tuple[Tensor, Tensor]]":
        import numpy as np
        import torch

        from tulip_ood.data.batches import batches
        from tulip_ood.data.vanished import check_there

        errors: list[Unreadable] = []
        for batch in batches(
            self._source, self._preprocess, batch_size=BATCH, workers=self._workers
        ):
            errors.extend(batch.errors)
            if batch.inputs is None:
                continue
            if self._labelled:
                yield batch.inputs, torch.as_tensor(np.asarray(batch.labels))
            else:
                yield batch.inputs
        if errors:
            check_there(self._folders, errors[0].path, errors[0].reason)
            self._bad[self._role] = len(errors)
