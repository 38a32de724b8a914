"""`tulip export`: a fitted detector and its network in one file, for onnxruntime alone."""

from typing import TYPE_CHECKING, Annotated

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import as_usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.export.plan import Plan

__all__ = ["export"]


def export(
    detector: Annotated[str, typer.Argument(help="What `tulip calibrate` wrote.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write.")],
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option("--format", help="onnx or pt2; by default what the file's name ends in."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="SPEC", help="The network; as for `tulip calibrate`."),
    ] = None,
    trust: options.Trust = False,
    preprocess: Annotated[
        bool,
        typer.Option("--preprocess", help="Take pixels, uint8 NHWC, and normalise them inside."),
    ] = False,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="DATA", help="Inputs to compare on, beside synthetic ones."
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Write a detector and its network as one file that runs without this program.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["export", "no.safetensors", "--out", "x.onnx"]).exit_code
        2
    """
    from rich.console import Console

    options.check_place(out, "--out")
    options.check_place(json, "--json")
    options.check_apart({"--out": out, "--json": json}, [detector, *(check or []), model])
    with as_usage():
        from tulip_ood.cluster.job import stored_preprocess
        from tulip_ood.data.opening import open_sources
        from tulip_ood.detectors.saving import load, read_header
        from tulip_ood.export.writing import check_format, export_detector
        from tulip_ood.models.spec import load_model, spec_for

        check_format(out, format)
        header = read_header(detector)
        spec = spec_for(model, header, detector)
        source = open_sources(check) if check else None
        prepared = None if source is None else stored_preprocess(header, source, detector)
        network = load_model(spec, trust=trust).module
    ready = load(detector, network)
    console = Console(stderr=True)
    with console.status("exporting") as status:

        def announce(plan: "Plan") -> None:
            console.print(_shown(plan))
            status.update("writing and comparing")

        written = export_detector(
            ready,
            out,
            format=format,
            preprocess=preprocess,
            check=None if source is None else _inputs(source, prepared),
            announce=announce,
        )
    typer.echo(f"{out}: {written.megabytes:,.3g} MB; {written.parity}")
    options.write_json(
        json,
        {
            "out": out,
            "megabytes": written.megabytes,
            "plan": written.plan.to_dict(),
            "parity": written.parity.to_dict(),
        },
    )


def _shown(plan: "Plan") -> object:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_row("detector", f"{plan.method}, as {plan.format}")
    table.add_row("size", f"about {plan.megabytes:,.3g} MB")
    once = f"; {100 * plan.trunk_share:.0f} % of a pass is done once for all"
    table.add_row("passes", f"{plan.passes}{once if plan.passes > 1 else ''}")
    cost = f"{plan.cost:.3g} × the network alone, about {plan.milliseconds:.3g} ms here in PyTorch"
    table.add_row("an input costs", cost)
    return table


def _inputs(source: "Source", preprocess: "Preprocess | None") -> "Iterator[Tensor]":
    from tulip_ood.data.batches import batches

    for batch in batches(source, preprocess, batch_size=64):
        if batch.inputs is not None:
            yield batch.inputs
