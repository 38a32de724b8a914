"""`tulip reproduce` for figures that are drawn from finished benchmarks."""

from pathlib import Path
from typing import TYPE_CHECKING

from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.cli.figure_sources import (
    NetworkSource,
    Out,
    Results,
    Tuning,
    ready,
    say,
    with_networks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tulip_ood.figures.canvas import Drawn
    from tulip_ood.figures.finished import Finished

__all__ = ["balanced_lambda", "self_tuning", "table_1", "table_2", "what_the_bound_adds"]


def _read(results: list[str] | None, *, may_be_empty: bool = False) -> "Finished":
    if not results and not may_be_empty:
        raise UsageError(
            "this figure is drawn from finished runs: give --results DIR (tulip bench)"
        )
    with as_usage():
        from tulip_ood.figures.finished import read_results

        return read_results(results or [])


def _draw(make: "Callable[[], Drawn]") -> None:
    with as_usage():
        drawn = make()
    say(drawn)


def balanced_lambda(results: Results = None, out: Out = Path("figures")) -> None:
    """The balanced λ against that of Alg. 1, network by network.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "balanced-lambda"]).exit_code
        2
    """
    finished = _read(results)
    ready(out)
    from tulip_ood.figures.balanced_lambda import draw

    _draw(lambda: draw(finished, out))


def self_tuning(results: Results = None, tuning: Tuning = None, out: Out = Path("figures")) -> None:
    """What self-tuning chooses, what that is worth, and what it costs.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "self-tuning"]).exit_code
        2
    """
    finished = _read(results, may_be_empty=bool(tuning))
    ready(out)
    from tulip_ood.figures.self_tuning import draw, read_tuning

    _draw(lambda: draw(finished, read_tuning(tuning or []), out))


def table_1(results: Results = None, out: Out = Path("figures")) -> None:
    """The paper's first table for the ID sets at hand, what is published beside it.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "table-1"]).exit_code
        2
    """
    finished = _read(results)
    ready(out)
    from tulip_ood.figures.table_one import draw

    _draw(lambda: draw(finished, out))


def table_2(results: Results = None, out: Out = Path("figures")) -> None:
    """The paper's second table: every network at hand (ImageNet-1K's, if there are any).

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "table-2"]).exit_code
        2
    """
    finished = _read(results)
    ready(out)
    from tulip_ood.figures.table_two import draw

    _draw(lambda: draw(finished, out))


@with_networks
def what_the_bound_adds(source: NetworkSource, results: Results = None) -> None:
    """TULiP without its parts, against the whole: finished runs, networks at hand, or both.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["reproduce", "what-the-bound-adds"]).exit_code
        2
    """
    finished = _read(results, may_be_empty=source.given)
    if source.given:
        source.need()
    ready(source.out)
    from tulip_ood.figures.bound_adds import draw

    measured = source.measure(input_noise=True) if source.given else []
    _draw(lambda: draw(finished, measured, source.out))
