"""`tulip demo`: train, fit, compare, show."""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli.options import check_folder, check_place

if TYPE_CHECKING:
    from tulip_ood.demo.leaving import Left

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the report, the detector and its network."),
    ] = Path("tulip-demo"),
    seed: Annotated[int, typer.Option(help="Another seed is another network.", min=0)] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Show the report in a browser at the end.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file, too.")
    ] = None,
) -> None:
    """Train a small network on digits, put TULiP on it, and see what it adds.

    Takes well under 90 seconds on two cores, offline; nothing is downloaded.

    Example:
        >>> from typer.testing import CliRunner
        >>> import typer
        >>> app = typer.Typer()
        >>> _ = app.command()(demo)
        >>> CliRunner().invoke(app, ["--help"]).exit_code
        0
    """
    check_folder(out, "--out")
    for place in ("report.html", "results.json", "network.safetensors", "detector.safetensors"):
        if out.is_dir():
            check_place(str(out / place), "--out")
    if json_file is not None:
        check_folder(json_file.parent, "--json")
        if json_file.parent.is_dir():
            check_place(str(json_file), "--json")
    # Heavy: `tulip --help` must not wait for torch.
    import time

    from rich.console import Console
    from rich.text import Text

    from tulip_ood.benchmark.tables import rich_table
    from tulip_ood.demo.run import run_demo

    console = Console()
    begun = time.monotonic()

    def say(line: str) -> None:
        console.print(Text.assemble((f"{time.monotonic() - begun:5.1f} s  ", "dim"), line))

    say("can a network’s answers be trusted? loading the pictures")
    result = run_demo(seed, say=say)
    report, results, left = result.write(out)
    say("done")
    console.print()
    console.print(rich_table(result.comparison), soft_wrap=True)
    console.print("\nAUROC and FPR@95 in %, AURC × 10⁻³; ↑ higher, ↓ lower is better.", style="dim")
    console.print()
    console.print(f"{result.verdict.headline}.", style="bold", highlight=False)
    for sentence in result.verdict.sentences:
        console.print(sentence, highlight=False)
    for finding in result.tulip.report().findings:
        console.print(Text.assemble(("look at this: ", "yellow"), str(finding)))
    console.print()
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_bytes(results.read_bytes())
    # Long paths must stay in one piece, to be clicked on or copied.
    for line in (
        f"report:   {report.resolve()}",
        f"results:  {results.resolve()}",
        f"detector: {left.detector.resolve()}",
        "",
        *_next(left, out),
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if open_browser:
        typer.launch(report.resolve().as_uri())


def _next(left: "Left", out: Path) -> list[str]:
    """Commands that go on with what was left, as they can be pasted."""
    tulip = ["tulip"] if which("tulip") else [sys.executable, "-m", "tulip_ood"]
    network = ["--model", str(left.network)]
    score = ["score", left.detector, left.known, left.unknown, *network]
    serve = ["serve", left.detector, *network]
    lacking = "" if find_spec("uvicorn") else "; first: pip install 'tulip-ood[serve]'"
    return [
        "score pictures, those in a folder of yours as well:",
        f"  {shlex.join(map(str, [*tulip, *score, '--out', out / 'scores.parquet']))}",
        f"ask it over HTTP, with a page to drop pictures on (from {out / 'images'}){lacking}:",
        f"  {shlex.join(map(str, [*tulip, *serve]))}",
    ]
