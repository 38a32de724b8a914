"""`tulip reproduce all`: every figure that the given sources suffice for."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import as_usage
from tulip_ood.cli.figure_sources import (
    Cache,
    Checkpoint,
    Data,
    IdSet,
    Limit,
    Networks,
    NetworkSource,
    Out,
    Results,
    Samples,
    Seed,
    Tuning,
    ready,
    say,
)
from tulip_ood.cli.figures import bound_classification, bound_regression, closeness
from tulip_ood.cli.figures_of_networks import OF_NETWORKS, draw_timing
from tulip_ood.errors import TulipError

if TYPE_CHECKING:
    from tulip_ood.figures.canvas import Drawn
    from tulip_ood.figures.finished import Finished
    from tulip_ood.figures.measured import MeasuredNetwork

__all__ = ["everything"]

_TIMED = 32  # images


def everything(
    results: Results = None,
    tuning: Tuning = None,
    data: Data = None,
    networks: Networks = None,
    checkpoint: Checkpoint = None,
    out: Out = Path("figures"),
    seed: Seed = 0,
    id_set: IdSet = None,
    limit: Limit = 500,
    samples: Samples = 10,
    cache: Cache = None,
    device: options.Device = None,
    trust: options.Trust = False,
) -> None:
    """Every figure and table for which there is a source.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "all", "--results", "/no/such"]).exit_code
        2
    """
    source = NetworkSource(
        data,
        [*(checkpoint or []), *(networks or [])],
        out,
        cache=cache,
        id_set=id_set,
        limit=limit,
        samples=samples,
        device=device,
        trust=trust,
    )
    if source.given:
        source.need()
    with as_usage():
        from tulip_ood.figures.finished import read_results

        finished = read_results(results or [])
    ready(out)
    failed = _from_nothing(out, seed)
    measured = source.measure(input_noise=True) if source.given else []
    failed += _draw_each(_of_results(finished, tuning or [], measured, out))
    if source.given:
        failed += _draw_each(_of_networks(source, measured, out, id_set))
    else:
        names = ", ".join([*OF_NETWORKS, "timing"])
        typer.echo(f"passed over, for want of --data and --checkpoint: {names}", err=True)
    if not results:
        typer.echo("passed over, for want of --results: tables, balanced-lambda", err=True)
    if failed:
        raise TulipError(f"not drawn: {', '.join(failed)}; the reasons stand above")


def _from_nothing(out: Path, seed: int) -> list[str]:
    """Those that need no source; closeness on the demo's network."""
    drawing: list[tuple[str, Callable[[], None]]] = [
        ("bound-regression", lambda: bound_regression(out, seed)),
        ("bound-classification", lambda: bound_classification(out, seed)),
        ("closeness", lambda: closeness(images=16, out=out, seed=seed)),
    ]
    return [name for name, draw in drawing if not _tried(name, draw)]


def _draw_each(figures: "Iterator[tuple[str, Callable[[], Drawn]]]") -> list[str]:
    """The names of those that could not be drawn."""
    return [name for name, draw in figures if not _tried(name, lambda d=draw: say(d()))]  # type: ignore[misc]


def _tried(name: str, draw: Callable[[], None]) -> bool:
    typer.echo(f"— {name}", err=True)
    try:
        draw()
    except (TulipError, ImportError) as error:  # the demo's network needs scikit-learn
        typer.echo(f"{name}: {error}", err=True)
        return False
    return True


def _of_results(
    finished: "Finished", tuning: list[str], measured: "list[MeasuredNetwork]", out: Path
) -> "Iterator[tuple[str, Callable[[], Drawn]]]":
    from tulip_ood.figures import balanced_lambda, bound_adds, self_tuning, table_one, table_two

    if finished.rows:
        yield "table-1", lambda: table_one.draw(finished, out)
        yield "table-2", lambda: table_two.draw(finished, out)
        yield "balanced-lambda", lambda: balanced_lambda.draw(finished, out)
    if finished.rows or tuning:
        yield (
            "self-tuning",
            lambda: self_tuning.draw(finished, self_tuning.read_tuning(tuning), out),
        )
    if finished.rows or measured:
        yield "what-the-bound-adds", lambda: bound_adds.draw(finished, measured, out)


def _of_networks(
    source: NetworkSource, measured: "list[MeasuredNetwork]", out: Path, id_set: str | None
) -> "Iterator[tuple[str, Callable[[], Drawn]]]":
    for name, (file, _) in OF_NETWORKS.items():
        drawer = importlib.import_module(f"tulip_ood.figures.{file}")
        several = getattr(drawer, "EPSILONS", ())

        def draw(drawer: object = drawer, several: tuple[float, ...] = several) -> "Drawn":
            found = source.measure(several) if several else measured
            drawn: Drawn = drawer.draw(found, out)  # type: ignore[attr-defined]
            return drawn

        yield name, draw
    yield "timing", lambda: draw_timing(source, out, id_set=id_set, images=_TIMED)
