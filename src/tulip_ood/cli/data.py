"""`tulip data`: what a benchmark root holds, and covariate-shifted sets made from it."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import FAILED, Stopped, UsageError, as_usage
from tulip_ood.cli.progress import make_progress
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from tulip_ood.data.checking import Checked
    from tulip_ood.data.root import Part, Root

__all__ = ["check", "corrupt", "data_app"]

_COLOURS = {
    "complete": "green",
    "stand-in": "yellow",
    "incomplete": "yellow",
    "missing": "dim",
    "damaged": "bold red",
}
_LIKE = {"cifar10c": "CIFAR-10-C", "imagenet_c": "ImageNet-C"}
_MADE = (*_LIKE, "blur_imagenet")

RootFolder = Annotated[
    str,
    typer.Argument(
        metavar="ROOT", help="A folder with sets.json, or OpenOOD's data with benchmark_imglist/."
    ),
]


def check(
    root: RootFolder,
    id_set: Annotated[
        list[str] | None,
        typer.Option("--id", help="cifar10, cifar100, imagenet200 or imagenet; default: all."),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every image, too.")] = False,
    json: options.Json = None,
) -> None:
    """Say which sets of OpenOOD v1.5 are here, against the protocol's counts.

    Example:
        >>> from typer.testing import CliRunner
        >>> CliRunner().invoke(data_app, ["check", "--help"]).exit_code
        0
    """
    options.check_place(json, "--json")
    with as_usage():
        from tulip_ood.data.checking import check as look
        from tulip_ood.data.checking import ready_sets
        from tulip_ood.data.protocol import protocol_of
        from tulip_ood.data.root import Root

        for name in id_set or ():
            protocol_of(name)
        opened = Root.open(root)
    with make_progress() as bar:
        running = bar.add_task("looking", total=None)
        found = look(
            opened,
            id_set or None,
            deep=deep,
            progress=lambda what, done, total: bar.update(
                running, description=what, completed=done, total=total
            ),
        )
    ready = ready_sets(found)
    _show(found, ready, asked=bool(id_set))
    options.write_json(
        json, {"root": root, "ready": list(ready), "sets": [each.to_dict() for each in found]}
    )
    if not ready:
        raise typer.Exit(FAILED)


def _show(found: "list[Checked]", ready: "tuple[str, ...]", *, asked: bool) -> None:
    from rich.console import Console

    console = Console()
    absent = []
    for id_set, group in groupby(found, key=lambda each: each.id_set):
        own = list(group)
        if not asked and all(each.state == "missing" for each in own):
            absent.append(id_set)
            continue
        _show_table(console, id_set, own, ready=id_set in ready)
    if absent:
        console.print(
            f"Nothing is here for {', '.join(absent)}; tulip data check ROOT --id {absent[0]} "
            f"says what is needed and who publishes it.",
            style="dim",
            highlight=False,
        )


def _show_table(console: "Console", id_set: str, own: "list[Checked]", *, ready: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, how in (("role", "left"), ("set", "left"), ("images", "right")):
        table.add_column(name, justify=how, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("protocol", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in own:
        colour = _COLOURS[each.state]
        role = f"id {each.role}" if each.group == "id" else each.group.replace("_", " ")
        table.add_row(
            role,
            each.name,
            f"{each.n:,}" if each.n else "–",
            "?" if each.expected is None else f"{each.expected:,}",
            f"[{colour}]{each.state}[/]",
            escape(each.detail),
            style="dim" if each.state == "missing" else None,
        )
    console.print(f"[bold]{id_set}[/]", highlight=False)
    console.print(table, highlight=False)
    _show_publishers(console, [each for each in own if each.state == "missing"])
    console.print(_verdict(id_set, own, ready=ready), highlight=False)
    console.print()


def _show_publishers(console: "Console", missing: "list[Checked]") -> None:
    """Below the table, where an address stays in one piece and can be clicked on."""
    where = {each.name: each.published for each in missing}
    if not where:
        return
    width = max(map(len, where))
    console.print("missing sets are published at", style="dim", highlight=False)
    for name, address in where.items():
        line = f"  {name:{width}}  {address}"
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


def _verdict(id_set: str, own: "list[Checked]", *, ready: bool) -> str:
    if ready:
        near, far = (sum(e.usable and e.group == g for e in own) for g in ("near", "far"))
        marked = sum(e.usable and e.state != "complete" for e in own)
        others = (
            f"; {marked} {'is' if marked == 1 else 'are'} not the protocol's own, "
            f"which every table will say"
            if marked
            else ""
        )
        return f"→ {id_set} can be benchmarked on {near} near and {far} far sets{others}."
    lacking = [
        f"its {what} images" for what, role in (("validation", "val"), ("test", "test"))
        if not any(e.usable and e.role == role for e in own)
    ]  # fmt: skip
    if not any(e.usable and e.group in ("near", "far") for e in own):
        lacking.append("a near or far set")
    return f"→ {id_set} cannot be benchmarked: it lacks {', '.join(lacking)}."


def corrupt(
    root: RootFolder,
    id_set: Annotated[str, typer.Option("--id", help="cifar10, imagenet200 or imagenet.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .parquet or .npz file.")],
    made: Annotated[
        str | None,
        typer.Option("--set", help=f"{', '.join(_MADE)}; default: cifar10c or blur_imagenet."),
    ] = None,
    corruptions: Annotated[
        str, typer.Option(help="all, or names with commas: gaussian_noise,fog.")
    ] = "all",
    severities: Annotated[str, typer.Option(help="From 1 to 5, with commas.")] = "1,2,3,4,5",
    sigma: Annotated[float, typer.Option(help="Of the blur, in pixels.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace FILE if it is there.")] = False,
) -> None:
    """Make a covariate-shifted set from the ID test images.

    Corrupted images are like CIFAR-10-C's or ImageNet-C's, not the same.

    Example:
        >>> from typer.testing import CliRunner
        >>> CliRunner().invoke(data_app, ["corrupt", "--help"]).exit_code
        0
    """
    options.check_place(out, "--out")
    with as_usage():
        from tulip_ood.data.corrupted_part import blur_part, corrupt_part
        from tulip_ood.data.corruptions import CORRUPTIONS
        from tulip_ood.data.protocol import protocol_of
        from tulip_ood.data.root import Root

        if not out.lower().endswith((".parquet", ".npz")):
            raise UsageError(f"--out: {out} must end in .parquet or .npz")
        name = _made(id_set, made)
        opened = Root.open(root)
        part = opened.part(id_set, "test")
        _check_free(opened, part, name, Path(out), overwrite=overwrite)
        kinds = list(CORRUPTIONS) if corruptions == "all" else corruptions.split(",")
        unknown = [kind for kind in kinds if kind not in CORRUPTIONS]
        if unknown:
            raise UsageError(
                f"--corruptions: {unknown[0]!r} is unknown; known are {', '.join(CORRUPTIONS)}"
            )
        levels = _levels(severities)
    protocol = protocol_of(id_set)
    with make_progress() as bar:
        running = bar.add_task(name, total=len(part))

        def say(done: int, _: int) -> None:
            bar.update(running, completed=done)

        try:
            if name == "blur_imagenet":
                n = blur_part(part, out, sigma, progress=say)
            else:
                as_is = protocol.set_of(name).as_is
                prepare = protocol.preprocess if as_is else None
                n = corrupt_part(part, out, kinds, levels, seed=seed, prepare=prepare, progress=say)
        except KeyboardInterrupt:
            raise Stopped("stopped; nothing was written") from None
    typer.echo(f"{out} has {counted(n, 'image')}. Name it in {opened.path / 'sets.json'}:")
    typer.echo(_entry(opened, part, name, out, kinds, sigma))


def _made(id_set: str, asked: str | None) -> str:
    """The set that is made; refuses what the protocol does not have for this ID set."""
    from tulip_ood.data.protocol import protocol_of

    can = [each.name for each in protocol_of(id_set).sets if each.name in _MADE]
    if not can:
        raise UsageError(f"the protocol has no covariate-shifted set for {id_set} to make")
    if asked is not None and asked not in can:
        raise UsageError(f"--set: for {id_set} one of {', '.join(can)} can be made, not {asked!r}")
    return asked or can[-1]


def _check_free(root: "Root", part: "Part", name: str, out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file unless that was asked for, and another set's images always."""
    if not out.exists():
        return
    others = {
        root.path / entry.file: f"{each} ({split})"
        for each, splits in root.sets.items()
        for split, entry in splits.items()
        if each != name
    }
    whole = (".parquet", ".npz")
    own = [Path(s.path) for s in part.source.files() if s.path.lower().endswith(whole)]
    others |= dict.fromkeys(own, f"{part.name} ({part.role})")
    for file, what in others.items():
        if file.exists() and out.samefile(file):
            raise UsageError(f"--out: {out} holds the images of {what}; name another file")
    if not overwrite:
        raise UsageError(f"--out: {out} is there already; name another file, or add --overwrite")


def _levels(text: str) -> list[int]:
    from tulip_ood.data.corruptions import SEVERITIES

    found = options.numbers(text, "--severities") or ()
    if not all(level in SEVERITIES for level in found):
        raise UsageError(f"--severities takes numbers from 1 to 5 with commas; got {text!r}")
    return [int(level) for level in found]


def _entry(root: "Root", part: "Part", name: str, out: str, kinds: list[str], sigma: float) -> str:
    """What goes into sets.json, ready to be copied."""
    import json

    if name == "blur_imagenet":
        stand_in = part.stand_in if sigma == 2 else f"blurred with sigma {sigma:g}, not 2"
    else:
        what = f"{len(kinds)} corruptions" if len(kinds) > 1 else kinds[0]
        stand_in = f"{what} made here from {len(part):,} test images; not {_LIKE[name]} itself"
    place = Path(out).absolute()
    base = root.path.absolute()
    file = str(place.relative_to(base)) if place.is_relative_to(base) else str(place)
    entry: dict[str, Any] = {"file": file, "list": "none", "stand_in": stand_in}
    return f'  "{name}": {json.dumps({"test": entry}, ensure_ascii=False)}'


data_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Look at benchmark data, and make some."
)
for _command in (check, corrupt):
    data_app.command(help=(_command.__doc__ or "").partition("\n\n    Example:")[0])(_command)
