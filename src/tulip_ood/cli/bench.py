"""`tulip bench`: OpenOOD's protocol over every detector and network, and the paper's tables."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.progress import LogLines, make_progress
from tulip_ood.errors import TulipError
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from tulip_ood.benchmark.runs import Benchmark
    from tulip_ood.benchmark.table_model import Table

__all__ = ["bench", "bench_app", "finish", "run_bench", "table"]

RESULTS = "results.parquet"
_FORMATS = ("text", "markdown", "latex", "html")
_TABLES = ("paper", "sets", "shift", "leaderboard")
_TRACKS = {"val": ("val",), "train": ("train",), "both": ("val", "train")}

bench_app = typer.Typer(
    help="OpenOOD v1.5 over every detector and network, and the paper's tables.",
    no_args_is_help=True,
)

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="ROOT",
        help="OpenOOD's data folder, or one with sets.json (see tulip data check).",
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help="all, or names with commas, with settings in brackets: msp,knn,tulip\\[recipe=paper]."
    ),
]
Track = Annotated[
    str, typer.Option(help="What is fitted on: val (validation images), train, or both.")
]
Seeds = Annotated[str, typer.Option(help="Noise seeds, with commas.")]
Tune = Annotated[
    str,
    typer.Option(
        help="What TULiP's rivals choose parameters on: ood (as OpenOOD does), pseudo, none."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, max=10**9, help="Images of each test set, a seeded subset."),
]
CacheLimit = Annotated[
    float, typer.Option(min=0, help="GiB of passes kept for methods that come later.")
]
Resamples = Annotated[int, typer.Option(min=20, help="Of the bootstrap behind the tables.")]


def bench(
    id_set: str,
    data: Data,
    networks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NETWORK]...", help="Networks: files or specs, one a seed."),
    ] = None,
    out: Annotated[str, typer.Option(help="The folder that everything is kept in.")] = "bench",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", "--network", metavar="NETWORK", help="The same, by option."),
    ] = None,
    methods: Methods = "all",
    track: Track = "val",
    seeds: Seeds = "0",
    tune: Tune = "ood",
    limit: Limit = None,
    mean: Annotated[str | None, typer.Option(help="Of the channels, as 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Of the channels.")] = None,
    batch_size: options.BatchSize = None,
    cache_limit: CacheLimit = 4.0,
    resamples: Resamples = 200,
    device: options.Device = None,
    workers: options.Workers = None,
    trust: options.Trust = False,
    json: options.Json = None,
) -> None:
    """Run every method on every network; a run that was stopped goes on where it was.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> words = ["bench", "cifar10", "net.pt2", "--data", "/no/such/folder"]
        >>> CliRunner().invoke(app, words).exit_code
        2
    """
    options.check_place(json, "--json")
    options.check_folder(Path(out), "--out")
    named = [*(checkpoint or []), *(networks or [])]
    if not named:
        raise UsageError("name at least one network: --checkpoint FILE (see tulip train)")
    found = run_bench(
        id_set,
        data,
        named,
        out=out,
        methods=methods,
        track=track,
        seeds=seeds,
        tune=tune,
        limit=limit,
        mean=mean,
        std=std,
        batch_size=batch_size,
        cache_limit=cache_limit,
        device=device,
        workers=workers,
        trust=trust,
    )
    finish(found, out, track=track, resamples=resamples, json=json)


def run_bench(
    id_set: str,
    data: str,
    named: list[str],
    *,
    out: str,
    methods: str,
    track: str,
    seeds: str,
    tune: str,
    limit: int | None,
    batch_size: int | None,
    cache_limit: float,
    device: str | None,
    mean: str | None = None,
    std: str | None = None,
    workers: int | None = None,
    trust: bool = False,
) -> "Benchmark":
    """What `tulip bench` does before it shows anything; for other commands, too.

    Example:
        >>> list(inspect.signature(run_bench).parameters)[:3]
        ['id_set', 'data', 'named']
    """
    if track not in _TRACKS:
        raise UsageError(f"--track must be one of {', '.join(_TRACKS)}; got {track!r}")
    with as_usage():
        from tulip_ood.benchmark.bench import bench as run
        from tulip_ood.benchmark.bench_networks import open_network
        from tulip_ood.data.protocol import protocol_of
        from tulip_ood.data.root import Root
        from tulip_ood.numerics.random import check_seed

        options.check_device(device)
        numbers = [check_seed(_whole(seed)) for seed in seeds.split(",")]
        protocol, root = protocol_of(id_set), Root.open(data)
        given = (options.numbers(mean, "--mean"), options.numbers(std, "--std"))
        opened = [open_network(spec, protocol, *given, device, trust=trust) for spec in named]
    typer.echo(_about_cache(out, cache_limit), err=True)
    done = total = 0
    log = LogLines()
    with make_progress() as bar:
        task = bar.add_task("looking at the data", total=None)

        def say(what: str, now: int, of: int) -> None:
            nonlocal done, total
            done, total = now, of
            bar.update(task, completed=now, total=of, description=what)
            log(what, now, of)

        try:
            with as_usage():
                return run(
                    id_set,
                    root,
                    opened,
                    out=out,
                    methods=methods,
                    tracks=_TRACKS[track],
                    seeds=numbers,
                    tune=tune,
                    limit=limit,
                    batch_size=batch_size,
                    cache_limit=int(cache_limit * 2**30),
                    workers=workers,
                    progress=say,
                )
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped with {done:,} of {total:,} scores; what is finished is in {out}, the "
                f"same command goes on from there"
            ) from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--seeds: {text!r} is no whole number") from None


def _about_cache(out: str, limit: float) -> str:
    """Said before the run, because it takes room on the disk."""
    if limit <= 0:
        return "no passes are kept (--cache-limit 0): methods that come later make them again"
    return (
        f"passes are kept in {Path(out) / 'passes'} for methods that come later, {limit:g} GiB at "
        f"most (--cache-limit)"
    )


def finish(found: "Benchmark", out: str, *, track: str, resamples: int, json: str | None) -> None:
    """Write the results, and show the tables of the tracks that were asked for.

    Example:
        >>> list(inspect.signature(finish).parameters)
        ['found', 'out', 'track', 'resamples', 'json']
    """
    from tulip_ood.benchmark.tidy import tidy
    from tulip_ood.benchmark.tidy_file import write_parquet

    target = Path(out) / RESULTS
    kept = f"every score is in {out}"
    try:
        rows = tidy(found)
        if rows:
            write_parquet(rows, target, found.environment)
            kept = f"all numbers are in {target}"
        options.write_json(json, _for_programs(found, rows))
        for each in _TRACKS[track]:
            _show_track(found, each, resamples)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {kept}, and tulip bench table {out} makes the tables") from None
    if not any(found.of(each) for each in _TRACKS[track]):
        raise TulipError(f"nothing could be computed for {out}; the reasons stand above")
    typer.echo(
        f"wrote {target}: {counted(len(rows), 'number')}. Other tables: tulip bench table {out}"
    )


def _for_programs(found: "Benchmark", rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything, findings of fitting included."""
    about = ("network", "method", "track", "noise_seed")
    findings = [
        {**{name: getattr(run, name) for name in about}, "findings": list(run.findings)}
        for run in found.runs
        if run.findings
    ]
    skipped = dict(found.skipped)
    return {"results": rows, "skipped": skipped, "findings": findings, **found.environment}


def _show_track(found: "Benchmark", track: str, resamples: int) -> None:
    from tulip_ood.benchmark.paper_table import paper_table
    from tulip_ood.benchmark.set_tables import shift_table

    if not found.of(track):
        _show_reasons(found, track)
        return
    pooled = _pooled(found, track, resamples)
    typer.echo(paper_table(found, track, pooled=pooled, format="text"))
    typer.echo("")
    if found.in_group("shifted"):
        typer.echo(shift_table(found, track, format="text"))
        typer.echo("")


def _show_reasons(found: "Benchmark", track: str) -> None:
    """Why a track has no table."""
    others = tuple(f"({each})" for each in _TRACKS["both"] if each != track)
    here = {name: why for name, why in found.skipped.items() if not name.endswith(others)}
    reasons = [f"  {name}: {why}" for name, why in here.items()]
    lines = reasons or ["  none of the methods learns from training images, or none was run"]
    typer.echo("\n".join([f"nothing was computed on the track {track}:", *lines]), err=True)


def _pooled(found: "Benchmark", track: str, resamples: int) -> Any:
    from tulip_ood.benchmark.pooled import pool

    log = LogLines()
    with make_progress() as bar:
        task = bar.add_task(f"bootstrap ({track})", total=None)

        def say(what: str, done: int, of: int | None) -> None:
            bar.update(task, completed=done, total=of)
            log(f"bootstrap ({track})", done, of or done)

        return pool(found, track, resamples=resamples, progress=say)


def table(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="What tulip bench wrote to.")],
    what: Annotated[str, typer.Option(help=f"{', '.join(_TABLES)}.")] = "paper",
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(_FORMATS)}.")] = "text",
    track: Annotated[str, typer.Option(help="val, train or both.")] = "both",
    metric: Annotated[str, typer.Option(help="For --what sets.")] = "auroc",
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of these networks alone: ids or names; repeat it."),
    ] = None,
    resamples: Resamples = 200,
    out: Annotated[str | None, typer.Option(help="Write to this file instead.")] = None,
) -> None:
    """Print the tables of a benchmark: the paper's, every set's, the shifted sets', a CSV.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["bench", "table", "/no/such/folder"]).exit_code
        2
    """
    options.check_place(out, "--out")
    for value, known, option in (
        (what, _TABLES, "--what"),
        (form, _FORMATS, "--format"),
        (track, tuple(_TRACKS), "--track"),
    ):
        if value not in known:
            raise UsageError(f"{option} must be one of {', '.join(known)}; got {value!r}")
    if what == "leaderboard" and form != "text":
        raise UsageError(f"--what leaderboard is CSV and nothing else; leave out --format {form}")
    with as_usage():
        from tulip_ood.benchmark.averages import of_networks
        from tulip_ood.benchmark.bench_loading import load_benchmark

        found = load_benchmark(folder)
        if not found.runs:
            for name, why in found.skipped.items():
                typer.echo(f"  {name}: {why}", err=True)
            raise UsageError(f"nothing is finished in {folder} yet")
        if network:
            found = of_networks(found, network)
    text = _text(found, what, form, track, metric, resamples)
    if out is None:
        typer.echo(text)
    else:
        from tulip_ood.network.files import appear

        appear(out, lambda path: path.write_text(text + "\n", encoding="utf-8"))
        typer.echo(f"wrote {out}")


def _text(found: "Benchmark", what: str, form: str, track: str, metric: str, resamples: int) -> str:
    from tulip_ood.benchmark.leaderboard import leaderboard_csv
    from tulip_ood.benchmark.rendering import render
    from tulip_ood.benchmark.rendering_html import as_html

    there = tuple(each for each in _TRACKS[track] if found.of(each))
    if not there:
        _show_reasons(found, _TRACKS[track][0])
        raise UsageError(f"there are no runs of the track {track!r}")
    if what == "leaderboard":
        from dataclasses import replace

        chosen = tuple(run for run in found.runs if run.track in there)
        return leaderboard_csv(replace(found, runs=chosen)).rstrip("\n")
    with as_usage():
        tables = [_table(found, what, each, metric, resamples) for each in there]
        if form == "html":  # one page, however many tables
            return as_html(*tables).rstrip("\n")
        return "\n\n".join(render(each, form) for each in tables)


def _table(found: "Benchmark", what: str, track: str, metric: str, resamples: int) -> "Table":
    from tulip_ood.benchmark.paper_table import paper_table_model
    from tulip_ood.benchmark.set_tables import per_set_table_model, shift_table_model

    if what == "paper":
        pooled = _pooled(found, track, resamples)
        return paper_table_model(found, track, pooled=pooled)
    if what == "shift":
        return shift_table_model(found, track)
    return per_set_table_model(found, track, metric)


def _command_of(id_set: str) -> Any:
    """`tulip bench cifar10 …`: the same command for each ID set."""
    signature = inspect.signature(bench)
    parameters = list(signature.parameters.values())[1:]

    def command(**arguments: Any) -> None:
        bench(id_set, **arguments)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


for _id_set in ("cifar10", "cifar100", "imagenet200", "imagenet"):
    _help = (bench.__doc__ or "").partition("\n")[0]
    bench_app.command(_id_set, help=_help)(_command_of(_id_set))
bench_app.command("table", help=(table.__doc__ or "").partition("\n")[0])(table)
