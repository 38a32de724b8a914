"""`tulip reproduce`: published numbers made again from scratch."""

from pathlib import Path
from typing import Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.bench import CacheLimit, Limit, Methods, Resamples, Track, finish, run_bench
from tulip_ood.cli.failing import UsageError, as_usage

__all__ = ["openood", "reproduce_app"]

reproduce_app = typer.Typer(help="Published numbers, made again.", no_args_is_help=True)


@reproduce_app.callback()
def _group() -> None:
    """Published numbers, made again."""


def openood(
    root: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="A folder with OpenOOD's data/ and results/ (its released checkpoints).",
        ),
    ],
    out: Annotated[str, typer.Option(help="One folder for each ID set comes in here.")] = "openood",
    id_set: Annotated[
        list[str] | None,
        typer.Option("--id", help="cifar10, cifar100, imagenet200, imagenet; default: all there."),
    ] = None,
    methods: Methods = "all",
    track: Track = "both",
    limit: Limit = None,
    batch_size: options.BatchSize = None,
    cache_limit: CacheLimit = 4.0,
    resamples: Resamples = 200,
    device: options.Device = None,
) -> None:
    """Run OpenOOD's released networks on its data, and write rows for its leaderboard.

    Example:
        >>> from typer.testing import CliRunner
        >>> CliRunner().invoke(reproduce_app, ["openood", "--root", "/no/such"]).exit_code
        2
    """
    options.check_folder(Path(out), "--out")
    with as_usage():
        from tulip_ood.benchmark.leaderboard import leaderboard_csv
        from tulip_ood.benchmark.released import released_networks
        from tulip_ood.data.protocol import PROTOCOLS, protocol_of
        from tulip_ood.network.files import appear

        chosen = [protocol_of(name).id_set for name in id_set or PROTOCOLS]
        found = {name: released_networks(root, name) for name in chosen}
        lacking = [name for name, networks in found.items() if not networks]
        if lacking and (id_set or len(lacking) == len(found)):
            raise UsageError(
                f"{root}/results has no checkpoints for {', '.join(lacking)}; expected "
                f"results/<id set>_…/s0/best.ckpt as OpenOOD releases them"
            )
    for name, networks in found.items():
        if not networks:
            typer.echo(f"{name}: no checkpoints in {root}/results, passed over", err=True)
            continue
        place = Path(out) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        results = run_bench(
            name,
            root,
            networks,
            out=str(place),
            methods=methods,
            track=track,
            seeds="0",
            tune="ood",
            limit=limit,
            batch_size=batch_size,
            cache_limit=cache_limit,
            device=device,
        )
        finish(results, str(place), resamples=resamples, json=None)
        rows = leaderboard_csv(results)
        target = Path(out) / f"leaderboard-{name}.csv"
        appear(target, lambda path, text=rows: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        typer.echo(f"wrote {target}")


reproduce_app.command("openood", help=(openood.__doc__ or "").partition("\n")[0])(openood)
