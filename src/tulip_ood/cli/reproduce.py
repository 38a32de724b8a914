"""`tulip reproduce`: published numbers and figures made again from scratch."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.bench import CacheLimit, Limit, Methods, Resamples, Track, finish, run_bench
from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.cli.figures import bound_classification, bound_regression, closeness
from tulip_ood.cli.figures_all import everything
from tulip_ood.cli.figures_of_networks import OF_NETWORKS, network_command, timing
from tulip_ood.cli.figures_of_results import (
    balanced_lambda,
    self_tuning,
    table_1,
    table_2,
    what_the_bound_adds,
)

if TYPE_CHECKING:
    from tulip_ood.data.root import Root

__all__ = ["openood", "reproduce_app"]

reproduce_app = typer.Typer(help="Published numbers and figures, made again.", no_args_is_help=True)


@reproduce_app.callback()
def _group() -> None:
    """Published numbers and figures, made again."""


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
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "openood", "--root", "/no/such"]).exit_code
        2
    """
    options.check_folder(Path(out), "--out")
    with as_usage():
        from tulip_ood.benchmark.leaderboard import leaderboard_csv
        from tulip_ood.benchmark.released import released_networks
        from tulip_ood.data.protocol import PROTOCOLS, protocol_of
        from tulip_ood.data.root import Root
        from tulip_ood.network.files import appear

        chosen = [protocol_of(name).id_set for name in id_set or PROTOCOLS]
        found = {name: released_networks(root, name) for name in chosen}
        lacking = [name for name, networks in found.items() if not networks]
        data = Root.open(root)
        # Those that were asked for by name say themselves what they lack.
        absent = [] if id_set else [name for name in chosen if not _has_images(data, name)]
        if lacking and (id_set or set(lacking) | set(absent) == set(chosen)):
            others = [name for name in absent if name not in lacking]
            images = f"; there are no images of {', '.join(others)} either" if others else ""
            raise UsageError(
                f"{root}/results has no checkpoints for {', '.join(lacking)}; expected "
                f"results/<id set>_…/s0/best.ckpt as OpenOOD releases them{images}"
            )
        if len(absent) == len(chosen):
            raise UsageError(f"{root} has no images of {', '.join(absent)} (tulip data check)")
    for name, networks in found.items():
        if name in lacking or name in absent:
            what = "checkpoints" if name in lacking else "validation and test images"
            typer.echo(f"{name}: no {what} in {root}, passed over", err=True)
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
        finish(results, str(place), track=track, resamples=resamples, json=None)
        rows = leaderboard_csv(results)
        target = Path(out) / f"leaderboard-{name}.csv"
        appear(target, lambda path, text=rows: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        typer.echo(f"wrote {target}")


def _has_images(root: "Root", id_set: str) -> bool:
    return root.has(id_set, "val") and root.has(id_set, "test")


_COMMANDS: dict[str, Callable[..., None]] = {
    "openood": openood,
    "bound-regression": bound_regression,
    "bound-classification": bound_classification,
    "closeness": closeness,
    **{name: network_command(name) for name in OF_NETWORKS},
    "timing": timing,
    "table-1": table_1,
    "table-2": table_2,
    "balanced-lambda": balanced_lambda,
    "self-tuning": self_tuning,
    "what-the-bound-adds": what_the_bound_adds,
    "all": everything,
}
for _name, _command in _COMMANDS.items():
    reproduce_app.command(_name, help=(_command.__doc__ or "").partition("\n")[0])(_command)
