"""`tulip reproduce all`: every figure that the given sources suffice for."""

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tulip_ood.cli.failing import as_usage
from tulip_ood.cli.figure_sources import (
    NetworkSource,
    Results,
    Seed,
    SideFiles,
    Tuning,
    ready,
    say,
    with_networks,
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
_ABLATED = (500, 4)  # images of a set, noisy passes, where there is a pass for every ε


@with_networks
def everything(
    source: NetworkSource,
    results: Results = None,
    tuning: Tuning = None,
    sides: SideFiles = None,
    seed: Seed = 0,
) -> None:
    """Every figure and table for which there is a source; one that fails stops no other.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "all", "--results", "/no/such"]).exit_code
        2
    """
    out = source.out
    if source.given:
        source.need()
    with as_usage():
        from tulip_ood.figures.finished import read_results

        finished = read_results(results or [])
    ready(out)
    failed = _from_nothing(out, seed, sides)
    measured: list[MeasuredNetwork] = []
    if source.given and not _tried(
        "passes", lambda: measured.extend(source.measure(input_noise=True))
    ):
        failed += [*OF_NETWORKS, "timing"]
    failed += _draw_each(_of_results(finished, tuning or [], measured, out))
    if measured:
        failed += _draw_each(_of_networks(source, measured))
    if not source.given:
        names = ", ".join([*OF_NETWORKS, "timing"])
        typer.echo(f"passed over, for want of --data and --checkpoint: {names}", err=True)
    if not results:
        typer.echo("passed over, for want of --results: tables, balanced-lambda", err=True)
    if failed:
        raise TulipError(f"not drawn: {', '.join(failed)}; the reasons stand above")


def _from_nothing(out: Path, seed: int, sides: list[str] | None) -> list[str]:
    """Those that need no source; closeness on the demo's network, if nothing was measured."""
    drawing: list[tuple[str, Callable[[], None]]] = [
        ("bound-regression", lambda: bound_regression(out, seed)),
        ("bound-classification", lambda: bound_classification(out, seed)),
        ("closeness", lambda: closeness(images=16, out=out, seed=seed, sides=sides)),
    ]
    return [name for name, draw in drawing if not _tried(name, draw)]


def _draw_each(figures: "Iterator[tuple[str, Callable[[], Drawn]]]") -> list[str]:
    """The names of those that could not be drawn."""
    return [name for name, draw in figures if not _tried(name, lambda d=draw: say(d()))]  # type: ignore[misc]


def _tried(name: str, draw: Callable[[], None]) -> bool:
    """Whatever goes wrong with one figure is told, and the next one is drawn."""
    started = time.perf_counter()
    typer.echo(f"— {name}", err=True)
    try:
        draw()
    except Exception as error:
        kind = "" if isinstance(error, TulipError) else f"{type(error).__name__}: "
        typer.echo(f"{name}: {kind}{error}", err=True)
        return False
    typer.echo(f"{name}: {time.perf_counter() - started:.1f} s", err=True)
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
    source: NetworkSource, measured: "list[MeasuredNetwork]"
) -> "Iterator[tuple[str, Callable[[], Drawn]]]":
    # Passes for every ε are many: fewer of them, and of the networks of one ID set.
    both = zip(source.networks, measured, strict=True)
    one_set = tuple(spec for spec, found in both if found.id_set == measured[0].id_set)
    few = replace(
        source,
        networks=one_set,
        limit=min(source.limit, _ABLATED[0]),
        samples=min(source.samples, _ABLATED[1]),
    )
    for name, (file, _) in OF_NETWORKS.items():
        drawer = importlib.import_module(f"tulip_ood.figures.{file}")
        several = getattr(drawer, "EPSILONS", ())

        def draw(drawer: object = drawer, several: tuple[float, ...] = several) -> "Drawn":
            found = few.measure(several) if several else measured
            drawn: Drawn = drawer.draw(found, source.out)  # type: ignore[attr-defined]
            return drawn

        yield name, draw
    yield "timing", lambda: draw_timing(source, images=_TIMED)
