"""`tulip methods`: what there is to choose from."""

import json
from typing import Annotated

import typer

__all__ = ["methods"]


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the detectors: what they need, what they cost, where they come from.

    Example:
        >>> methods(as_json=True)  # doctest: +ELLIPSIS
        [
         {
          "name": "msp",
        ...
    """
    from rich.console import Console
    from rich.table import Table

    from tulip_ood.detectors.registry import available

    if as_json:
        typer.echo(json.dumps([method.to_dict() for method in available()], indent=1))
        return
    table = Table("method", "needs", "learns from", "passes", "from", box=None, header_style="bold")
    for method in available():
        needs = ", ".join(method.needs) or "–"
        learns = "–" if method.learns_from == "nothing" else method.learns_from
        table.add_row(method.name, needs, learns, str(method.passes), method.reference)
    Console().print(table)
