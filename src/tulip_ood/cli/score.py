"""`tulip score`: a table with a score for every input, in parts that survive a kill."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.numbering import folder_classes
from tulip_ood.cli.progress import make_progress
from tulip_ood.errors import DataError
from tulip_ood.wording import counted, percent

if TYPE_CHECKING:
    from tulip_ood.cluster.job import Job
    from tulip_ood.detectors.base import Detector

__all__ = ["Engine", "check_engine", "score"]

# Names by which other programs, or people, would take the table for something else.
_OTHER_TABLES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".xlsx", ".npz", ".safetensors")
Work = Callable[["Job", Sequence[int], Callable[[int], None]], None]


class Engine(StrEnum):
    """What does the work.

    Example:
        >>> [str(engine) for engine in Engine]
        ['local', 'ray']
    """

    LOCAL = "local"
    RAY = "ray"


def check_engine(engine: Engine, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Refuse options that the other engine would have heard.

    Args:
        engine: The one that was chosen.
        local: Options of the local one, with what was given for them.
        ray: Those of Ray.

    Example:
        >>> check_engine(Engine.LOCAL, local={}, ray={"--actors": 4})
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --actors says nothing to --engine local: leave it out, \
or choose --engine ray
    """
    deaf, other = (ray, Engine.RAY) if engine is Engine.LOCAL else (local, Engine.LOCAL)
    for option, value in deaf.items():
        if value is not None:
            raise UsageError(
                f"{option} says nothing to --engine {engine}: leave it out, or choose --engine "
                f"{other}"
            )


def score(
    detector: Annotated[str, typer.Argument(help="What `tulip calibrate` wrote.")],
    inputs: Annotated[
        list[str], typer.Argument(help="Folders, image lists, parquet, npz, or images.")
    ],
    out: Annotated[
        str,
        typer.Option("--out", metavar="FILE", help="The parquet file to write; see --partitioned."),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="SPEC", help="The network; as for `tulip calibrate`."),
    ] = None,
    trust: options.Trust = False,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what another run has written there.")
    ] = False,
    part_rows: Annotated[
        int, typer.Option(min=1, help="Rows in a part: what a kill costs at most.")
    ] = 1024,
    workers: options.Workers = None,
    partitioned: Annotated[
        bool,
        typer.Option("--partitioned", help="Leave the table in parts: FILE is a folder, or a URI."),
    ] = False,
    engine: Annotated[
        Engine, typer.Option("--engine", help="Here, or on a Ray cluster (extra `ray`).")
    ] = Engine.LOCAL,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The Ray cluster; by default one on this machine."),
    ] = None,
    actors: Annotated[
        int | None, typer.Option(min=1, help="Ray: processes that hold the network.")
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(min=0, help="Ray: processes that only decode; 0: the actors do it."),
    ] = None,
    json: options.Json = None,
) -> None:
    """Score inputs; run the same command again to go on after a kill.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["score", "no.safetensors", "x", "--out", "y"]).exit_code
        2
    """
    options.check_apart({"--out": out, "--json": json}, [detector, *inputs, classes, model])
    target = _check_out(out, partitioned)
    of_ray = {"--address": address, "--actors": actors, "--decoders": decoders}
    check_engine(engine, local={"--workers": workers}, ray=of_ray)
    options.check_place(json, "--json")
    with as_usage():
        from tulip_ood.cluster.job import prepare
        from tulip_ood.data.opening import read_classes
        from tulip_ood.detectors.saving import read_header

        given = None if classes is None else read_classes(classes)
        job = prepare(
            detector,
            inputs,
            target,
            model=model,
            trust=trust,
            classes=_classes(read_header(detector), inputs, given),
            root=root,
            batch_size=batch_size,
            device=device,
            part_rows=part_rows,
            partitioned=partitioned,
        )
        if engine is Engine.LOCAL:  # a cluster has devices of its own
            options.check_device(device)
    parts = job.parts
    with parts.alone():
        if parts.finished():
            if parts.begun():  # killed between the last two steps
                parts.tidy()
            typer.echo(f"{out} is finished already, from the same detector and inputs")
        else:
            try:
                with as_usage():
                    if not overwrite:
                        parts.check()
                    on_ray = engine is Engine.RAY
                    load = _on_ray(address, actors, decoders) if on_ray else _here(job, workers)
                work = load()
                parts.prepare()
                _run(job, work)
                parts.merge()
            except KeyboardInterrupt:
                raise Stopped(
                    f"stopped; {_kept(job)} kept in {parts.folder}: run the same command again to "
                    f"go on"
                ) from None
    _show(target, json)


def _kept(job: "Job") -> str:
    try:
        return f"{job.parts.kept:,} of {job.parts.rows:,} rows are"
    except KeyboardInterrupt:  # one who does not even wait for the count
        return "finished parts are"


def _check_out(out: str, partitioned: bool) -> Path | str:
    from tulip_ood.data.remote import is_remote

    if not partitioned and out.lower().endswith(_OTHER_TABLES):
        raise UsageError(
            f"--out {out}: the table is written as parquet, which such a name hides; name it "
            f"{Path(out).stem}.parquet (pyarrow, pandas, polars and DuckDB read it)"
        )
    if is_remote(out):
        return out
    if partitioned and Path(out).is_dir():
        options.check_folder(Path(out), "--out")
        return Path(out)
    return options.check_place(out, "--out")


def _classes(
    header: dict[str, Any], inputs: list[str], given: "tuple[str, ...] | None"
) -> "tuple[str, ...] | None":
    """The classes for class folders; none where these do not fit the network's outputs."""
    from tulip_ood.data.opening import classes_of_outputs

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


def _run(job: "Job", work: Work) -> None:
    """Score what is missing."""
    missing = job.parts.missing()
    kept = job.parts.rows - sum(len(job.parts.range_of(index)) for index in missing)
    if kept:
        typer.echo(f"{kept:,} of {job.parts.rows:,} rows are there already: going on", err=True)
    with make_progress() as bar:
        task = bar.add_task("scoring", total=job.parts.rows, completed=kept)
        work(job, missing, lambda rows: bar.advance(task, rows))


def _on_ray(address: str | None, actors: int | None, decoders: int | None) -> Callable[[], Work]:
    """Finds out whether Ray is there."""
    from tulip_ood.cluster.scoring import import_ray, score_on_ray

    import_ray()

    def work(job: "Job", missing: Sequence[int], done: Callable[[int], None]) -> None:
        score_on_ray(job, missing, done, address=address, actors=actors, decoders=decoders)

    return lambda: work


def _here(job: "Job", workers: int | None) -> Callable[[], Work]:
    """Finds the network; what is returned puts the detector on it."""
    from tulip_ood.cluster.job import check_unchanged, make_network
    from tulip_ood.data.parts import digest_of_file
    from tulip_ood.detectors.saving import load

    network = make_network(job.model, trust=job.trust)

    def start() -> Work:
        size = job.batch_size
        ready = load(job.detector, network, device=job.device, batch_size=size)
        check_unchanged(job, digest_of_file(job.detector))
        return partial(_score, ready, workers)

    return start


def _score(
    detector: "Detector",
    workers: int | None,
    job: "Job",
    missing: Sequence[int],
    done: Callable[[int], None],
) -> None:
    """In this process, part by part."""
    from tulip_ood.data.batches import batches
    from tulip_ood.data.scores import check_fetched, scored

    parts = job.parts
    for index, last in _runs(missing):
        rows: list[dict[str, Any]] = []
        found = batches(
            job.source,
            job.preprocess,
            batch_size=job.batch_size,
            first=parts.range_of(index).start,
            stop=parts.range_of(last).stop,
            cut=parts.part_rows,  # so that a resumed run puts the same rows together
            workers=workers,
            device=detector.network.device,
        )
        with contextlib.closing(found):  # whatever happens, those who decode end here
            for batch in found:
                rows += scored(detector, batch)
                done(batch.size)
                if len(rows) == len(parts.range_of(index)):
                    check_fetched(rows, job.folders)
                    parts.write(index, rows)
                    rows, index = [], index + 1


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring parts together, so that decoding can run ahead across their borders."""
    for _, run in itertools.groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        yield members[0], members[-1]


def _show(target: Path | str, json: str | None) -> None:
    """What is in the table."""
    from tulip_ood.data.summary import summarise

    found = summarise(target)
    share = percent(found.accepted / found.rows)
    typer.echo(
        f"{target}: {counted(found.rows, 'input')}, {found.accepted:,} accepted ({share}), "
        f"{found.refused:,} refused, {found.errors:,} without a score"
    )
    options.show_unreadable(found.first_errors, found.errors)
    counts = {name: getattr(found, name) for name in ("rows", "accepted", "refused", "errors")}
    first = options.unreadable_as_json(found.first_errors)
    options.write_json(json, {"out": str(target), **counts, "first_errors": first})
    if found.errors == found.rows:
        raise DataError(f"none of the inputs could be scored; {target} says why, in `error`")
