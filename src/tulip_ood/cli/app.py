"""The commands together. Nothing heavy is imported before a command runs."""

import importlib
import inspect
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tulip_ood.cli.bench import bench_app
from tulip_ood.cli.calibrate import calibrate
from tulip_ood.cli.compare import compare
from tulip_ood.cli.data import data_app
from tulip_ood.cli.export import export
from tulip_ood.cli.failing import one_line
from tulip_ood.cli.methods import methods
from tulip_ood.cli.monitor import monitor
from tulip_ood.cli.reproduce import reproduce_app
from tulip_ood.cli.score import score
from tulip_ood.cli.serve import serve
from tulip_ood.cli.train import train
from tulip_ood.errors import TulipError
from tulip_ood.version import __version__

__all__ = ["app"]


class Commands(TyperGroup):
    """Commands whose errors are one line, and of which `demo` is imported when it is asked for.

    Example:
        >>> from typer.testing import CliRunner
        >>> CliRunner().invoke(app, ["score", "--nonsense"]).exit_code
        2
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of a first day with TULiP."""
        return ["demo", *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called so, or None."""
        return _demo() if cmd_name == "demo" else super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with one_line(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


def _help(command: Any) -> str:
    """The docstring without its doctest."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n\nExample:")[0]


def _demo() -> Any:
    """The demo's command; where what it needs is missing, one that says so."""
    single = typer.Typer(add_completion=False)
    try:
        demo = importlib.import_module("tulip_ood.cli.demo").demo
        single.command("demo", help=_help(demo))(demo)
    except ImportError as error:
        problem = error

        @single.command("demo", context_settings={"ignore_unknown_options": True})
        def missing(_: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
            """See TULiP at work on a small network (needs the extra `demo`)."""
            raise TulipError(
                f"the demo cannot start ({problem}): pip install 'tulip-ood[demo]'"
            ) from problem

    return typer.main.get_command(single)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tulip-ood {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def tulip(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Can this network's answer be trusted on this input?"""
    # What matters in an image that Pillow warns of becomes a reason in the table.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # PyTorch about itself, whenever an exported program is copied.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec")


for _command in (methods, compare, calibrate, score, export, serve, monitor, train):
    app.command(help=_help(_command))(_command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(reproduce_app, name="reproduce")
