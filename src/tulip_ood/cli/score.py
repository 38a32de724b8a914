"""`tulip score`: a table with a score for every input, in parts that survive a kill."""

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.fitting import network_refuses
from tulip_ood.cli.numbering import classes_of_outputs, folder_classes
from tulip_ood.cli.progress import make_progress
from tulip_ood.cli.reopening import spec_for
from tulip_ood.errors import DataError
from tulip_ood.version import __version__
from tulip_ood.wording import percent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tulip_ood.data.batches import Batch
    from tulip_ood.data.parts import Parts
    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.detectors.base import Detector
    from tulip_ood.detectors.prediction import Prediction

__all__ = ["score"]

_LISTED = 20  # unreadable inputs that the summary names


def score(
    detector: Annotated[str, typer.Argument(help="What `tulip calibrate` wrote.")],
    inputs: Annotated[
        list[str], typer.Argument(help="Folders, image lists, parquet, npz, or images.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The parquet file to write.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="SPEC", help="The network; as for `tulip calibrate`."),
    ] = None,
    trust: options.Trust = False,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    workers: options.Workers = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what another run has written there.")
    ] = False,
    part_rows: Annotated[
        int, typer.Option(min=1, help="Rows in a part: what a kill costs at most.")
    ] = 1024,
    json: options.Json = None,
) -> None:
    """Score inputs; run the same command again to go on after a kill.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["score", "no.safetensors", "x", "--out", "y"]).exit_code
        2
    """
    target = options.check_place(out, "--out")
    options.check_place(json, "--json")
    with as_usage():
        from tulip_ood.data.lock import locked
        from tulip_ood.data.opening import open_sources, read_classes
        from tulip_ood.data.parts import Parts, describe_inputs, digest_of_file
        from tulip_ood.data.scores import score_schema
        from tulip_ood.detectors.saving import load, read_header
        from tulip_ood.models.spec import load_model

        header = read_header(detector)
        spec = spec_for(model, header, detector)
        schema = score_schema(header["config"]["task"])
        names = _classes(header, inputs, None if classes is None else read_classes(classes))
        source = open_sources(inputs, classes=names, root=root)
        preprocess = _preprocess(header, source, detector)
        options.check_device(device)
    size = batch_size or (64 if device is None or device.startswith("cpu") else 256)
    manifest = {
        "format": 1,
        "detector": digest_of_file(detector),
        "weights": header["weights_sha256"],
        "inputs": describe_inputs(source),
        "settings": {
            "batch_size": size,
            "part_rows": part_rows,
            "device": device,
            "classes": None if names is None else list(names),
            "root": root,
        },
        "versions": _versions(),
    }
    parts = Parts(target, schema, manifest, rows=len(source), part_rows=part_rows)
    with locked(f"{out}.lock", out):
        if parts.finished():
            if parts.begun():  # killed between the last two steps
                parts.clear()
            typer.echo(f"{out} is finished already, from the same detector and inputs")
        else:
            try:
                with as_usage():
                    if not overwrite:
                        parts.check()
                    network = load_model(spec, trust=trust).module
                ready = load(detector, network, device=device, batch_size=size)
                parts.prepare()
                _run(ready, source, preprocess, parts, size, workers)
                parts.merge()
            except KeyboardInterrupt:
                raise Stopped(
                    f"stopped; {parts.kept:,} of {parts.rows:,} rows are kept in {parts.folder}: "
                    f"run the same command again to go on"
                ) from None
    _show(target, json)


def _classes(
    header: dict[str, Any], inputs: list[str], given: "tuple[str, ...] | None"
) -> "tuple[str, ...] | None":
    """The classes for class folders; none where these do not fit the network's outputs."""
    task, outputs = header["config"]["task"], header["facts"]["n_outputs"]
    try:
        return folder_classes(
            inputs,
            given=given,
            known=header["classes"],
            outputs=classes_of_outputs(task, outputs),
        )
    except DataError as error:
        # Folders that happen to be there are not classes: better no truth than a wrong one.
        typer.echo(f"no labels are written: {error}", err=True)
        return ()


def _preprocess(header: dict[str, Any], source: "Source", path: str) -> "Preprocess | None":
    from tulip_ood.data.preprocess import Preprocess

    if source.ready:
        return None
    if header["preprocess"] is None:
        raise UsageError(
            f"{path} does not say how images are prepared (it was fitted on arrays, or from "
            f"Python): score an npz file with floating x, or set "
            f"detector.provenance['preprocess'] = Preprocess(…).to_json() before saving"
        )
    return Preprocess.from_json(header["preprocess"])


def _versions() -> dict[str, str]:
    """Other releases may round otherwise, and one table should have one arithmetic."""
    import PIL
    import torch

    return {"tulip_ood": __version__, "torch": str(torch.__version__), "pillow": PIL.__version__}


def _run(
    detector: "Detector",
    source: "Source",
    preprocess: "Preprocess | None",
    parts: "Parts",
    batch_size: int,
    workers: int | None,
) -> None:
    """Score what is missing, part by part."""
    from tulip_ood.data.batches import batches
    from tulip_ood.data.scores import score_rows

    missing = parts.missing()
    kept = parts.rows - sum(len(parts.range_of(index)) for index in missing)
    if kept:
        typer.echo(f"{kept:,} of {parts.rows:,} rows are there already: going on", err=True)
    with make_progress() as bar:
        task = bar.add_task("scoring", total=parts.rows, completed=kept)
        for index, last in _runs(missing):
            rows: list[dict[str, Any]] = []
            found = batches(
                source,
                preprocess,
                batch_size=batch_size,
                first=parts.range_of(index).start,
                stop=parts.range_of(last).stop,
                cut=parts.part_rows,  # so that a resumed run puts the same rows together
                workers=workers,
                device=detector.network.device,
            )
            for batch in found:
                rows += score_rows(detector.task.name, batch, _predict(detector, batch))
                bar.advance(task, batch.size)
                if len(rows) == len(parts.range_of(index)):
                    parts.write(index, rows)
                    rows, index = [], index + 1


def _runs(indices: list[int]) -> "Iterator[tuple[int, int]]":
    """Neighbouring parts together, so that decoding can run ahead across their borders."""
    for _, run in itertools.groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        yield members[0], members[-1]


def _predict(detector: "Detector", batch: "Batch") -> "Prediction | None":
    if batch.inputs is None:
        return None
    try:
        return detector.predict(batch.inputs)
    except RuntimeError as error:
        raise network_refuses(error, batch.inputs) from error


def _show(target: "Path", json: str | None) -> None:
    """Count what is in the table, a piece at a time."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from tulip_ood.data.batches import Unreadable

    rows = accepted = bad = 0
    first: list[Unreadable] = []
    with pq.ParquetFile(target) as file:
        for batch in file.iter_batches(columns=["row", "path", "accepted", "error"]):
            rows += len(batch)
            accepted += pc.sum(batch["accepted"]).as_py() or 0
            wrong = batch.filter(pc.is_valid(batch["error"]))
            bad += len(wrong)
            few = wrong.slice(0, max(0, _LISTED - len(first))).to_pylist()
            first += [Unreadable(row["row"], row["path"], row["error"]) for row in few]
    refused = rows - accepted - bad
    typer.echo(
        f"{target}: {rows:,} inputs, {accepted:,} accepted ({percent(accepted / rows)}), "
        f"{refused:,} refused, {bad:,} without a score"
    )
    options.show_unreadable(first, bad)
    summary: dict[str, Any] = {"out": str(target), "rows": rows, "accepted": accepted}
    more = {"refused": refused, "errors": bad, "first_errors": options.unreadable_as_json(first)}
    options.write_json(json, summary | more)
    if bad == rows:
        raise DataError(f"none of the inputs could be scored; {target} says why, in `error`")
