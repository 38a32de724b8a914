"""`tulip monitor`: has what comes in drifted, and how often is it refused?"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.wording import counted, percent

if TYPE_CHECKING:
    from tulip_ood.serving.monitoring import Refused, Watched

__all__ = ["monitor"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def monitor(
    logs: Annotated[
        list[str],
        typer.Argument(help="Logs of `tulip serve --log`, tables of `tulip score` (parquet)."),
    ],
    detector: Annotated[
        list[str] | None,
        typer.Option("--detector", metavar="FILE", help="Needed for tables; may be repeated."),
    ] = None,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order",
            help="Rows of tables came in the order in which they stand; otherwise that is taken "
            "for the order of folders, and they are read in random order.",
        ),
    ] = False,
    alpha: Annotated[
        float, typer.Option("--alpha", help="The chance of a false alarm, ever.")
    ] = 0.01,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Of the intervals, at all times at once.")
    ] = 0.95,
    fail: Annotated[
        bool, typer.Option("--fail", help="Exit with 1 if there is drift, for scripts.")
    ] = False,
    json: options.Json = None,
) -> None:
    """Test logged scores for drift, valid however often one looks; show refusal rates.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["monitor", "no.jsonl"]).exit_code
        2
    """
    options.check_place(json, "--json")
    options.check_apart({"--json": json}, [*logs, *(detector or [])])
    with as_usage():
        from tulip_ood.serving.monitoring import read_streams, watch

        streams = read_streams(logs, detectors=detector or [], in_order=in_order)
        found = [watch(one, alpha=alpha, confidence=confidence) for one in streams]
    for one in found:
        _show(one, alpha, confidence, detector or [])
    if not found:
        typer.echo("there are no scores in these logs")
    settings = {"alpha": alpha, "confidence": confidence, "in_order": in_order}
    options.write_json(json, settings | {"detectors": [one.to_dict() for one in found]})
    if fail and any(one.drifted for one in found):
        raise typer.Exit(1)
    if fail and (unknown := [one.version for one in found if one.inputs and one.drifted is None]):
        raise UsageError(
            f"--fail: whether there is drift is not known for detector {', '.join(unknown)}: give "
            f"its file as --detector FILE"
        )


def _show(found: "Watched", alpha: float, confidence: float, given: list[str]) -> None:
    beside = f", {found.unreadable:,} could not be read" if found.unreadable else ""
    typer.echo(f"detector {found.version}: {counted(found.inputs, 'input')}{beside}")
    typer.echo(f"  {_drift(found, alpha, given)}")
    if found.buckets:
        highest = max(found.buckets)
        bars = "".join(_BLOCKS[round(7 * count / highest)] for count in found.buckets)
        typer.echo(f"  p-values 0 {bars} 1 (flat: no drift)")
    for refused in found.refusals:
        typer.echo(f"  {_rate(refused, confidence)}")


def _drift(found: "Watched", alpha: float, given: list[str]) -> str:
    if found.drifted is None and not found.inputs:
        return "drift: not known, nothing was scored yet"
    if found.drifted is None:
        others = f" (not {', '.join(given)}, which is another one)" if given else ""
        return (
            "drift: not known, because no log tells the calibration scores of this detector: "
            f"give --detector FILE{others}"
        )
    odds = f"evidence {_power(found.evidence)} : 1 at its highest, {_power(found.now)} : 1 now"
    if not found.drifted:
        return f"no drift found ({odds}; an alarm needs {1 / alpha:g} : 1)"
    when = ""
    if found.noticed_at is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.noticed_at))
        when = f", at {stamp}"
    elif found.mixed:
        when = " of the rows in random order (--in-order: as they stand in the table)"
    assert found.noticed is not None
    return (
        f"DRIFT: the inputs are not like the validation data ({odds}); noticed at input "
        f"{found.noticed + 1:,}{when}. Without drift this happens with probability at most "
        f"{alpha:g}, however often one looks"
    )


def _power(exponent: float | None) -> str:
    """10 to that power, in a form that can be read."""
    assert exponent is not None
    return f"{10**exponent:.3g}" if -4 < exponent < 6 else f"10^{exponent:.0f}"


def _rate(refused: "Refused", confidence: float) -> str:
    promised = ""
    if refused.promise is not None:
        kind, target = refused.promise
        words = {"false_alarm": "false alarms", "max_error": "errors among accepted"}[kind]
        promised = f"; promised on in-distribution inputs: at most {percent(target)} {words}"
    return (
        f"refused {refused.refused:,} of {refused.inputs:,}: {percent(refused.rate)} "
        f"({percent(refused.low)} to {percent(refused.high)}, {percent(confidence, 0)} confidence "
        f"at all times at once){promised}"
    )
