"""`tulip demo`: train, fit, compare, show."""

from pathlib import Path
from typing import Annotated

import typer

from tulip_ood.cli.options import check_folder, check_place

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for report.html and results.json.")
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
    for place in ("report.html", "results.json"):
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
    report, results = result.write(out)
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
    console.print(f"report:  {report.resolve()}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"results: {results.resolve()}", soft_wrap=True, highlight=False, markup=False)
    if open_browser:
        typer.launch(report.resolve().as_uri())
