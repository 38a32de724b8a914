"""What several commands are given alike, and how it is read."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

import typer

from tulip_ood.cli.failing import UsageError
from tulip_ood.wording import json_values, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tulip_ood.data.batches import Unreadable
    from tulip_ood.data.preprocess import Preprocess

__all__ = [
    "BatchSize",
    "Classes",
    "Device",
    "Json",
    "Model",
    "Root",
    "Trust",
    "Workers",
    "check_apart",
    "check_device",
    "check_folder",
    "check_place",
    "check_writable",
    "choose_preprocess",
    "numbers",
    "show_unreadable",
    "unreadable_as_json",
    "write_json",
]

_SHOWN = 5

Model = Annotated[
    str,
    typer.Argument(
        help="package.module:factory, file.safetensors (tulip train), file.pt2, torchvision:NAME, "
        "timm:NAME, hf:ORG/NAME, openood:FILE, efficientnet-lite:0, or a short name (vit-b-16, …)."
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", metavar="FILE", help="Class names in the network's order, one a line."
    ),
]
Root = Annotated[
    str | None,
    typer.Option("--root", metavar="DIR", help="What the paths in an image list are relative to."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Open a .pt2 network although it can run code.")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Inputs in one forward pass.")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="Where passes run, for instance cuda; default: where the model is."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        metavar="N",
        help="How many decode images beside the network; default: one a processor, at most 16.",
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write what is shown as JSON, too.")
]


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Numbers with commas between them.

    Example:
        >>> numbers("0.49,0.48,0.45", "--mean")
        (0.49, 0.48, 0.45)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} takes numbers like 0.49,0.48,0.45; got {text!r}") from None


def choose_preprocess(
    known: "Preprocess | None",
    *,
    images: bool,
    resize: int | None,
    crop: int | None,
    mean: str | None,
    std: str | None,
    spec: str,
) -> "Preprocess | None":
    """How images are prepared: as the spec says (squashed, too), but for what the user has set.

    Where the spec says nothing, mean, std and a size must be given; of `resize` and `crop` one is
    enough, the other is then the same. None for data that are ready.

    Example:
        >>> choose_preprocess(
        ...     None, images=True, resize=None, crop=32, mean="0.5", std="0.2", spec="net:make"
        ... ).resize
        32
    """
    from tulip_ood.data.preprocess import Preprocess

    means, stds = numbers(mean, "--mean"), numbers(std, "--std")
    for option, values in (("--mean", means), ("--std", stds)):
        if values is not None and not all(0 <= value <= 1 for value in values):
            shown = ",".join(f"{value / 255:.3f}" for value in values)
            hint = f": for 0 to 255, divide by 255 ({option} {shown})" if max(values) > 1 else ""
            raise UsageError(
                f"{option} {','.join(f'{value:g}' for value in values)}: pixels lie between 0 and "
                f"1, and so do their mean and deviation{hint}"
            )
    if not images:
        if any(value is not None for value in (resize, crop, means, stds)):
            raise UsageError(
                "the data are normalised already (npz with floating x): leave out --resize, "
                "--crop, --mean and --std"
            )
        return None
    if known is not None:
        return replace(
            known,
            resize=known.resize if resize is None else resize,
            crop=known.crop if crop is None else crop,
            mean=means or known.mean,
            std=stds or known.std,
        )
    lacking = [name for name, value in (("--mean", means), ("--std", stds)) if value is None]
    if resize is None and crop is None:
        lacking.insert(0, "--crop (and --resize)")
    if lacking or means is None or stds is None:
        raise UsageError(
            f"{spec} does not say how images are prepared for it: give {', '.join(lacking)}, as in "
            f"training; or data that are normalised already (npz with floating x)"
        )
    for option, side in (("--resize", resize), ("--crop", crop)):
        if side is not None and side < 1:
            raise UsageError(f"{option} must be at least 1, got {side}")
    return Preprocess(
        crop if resize is None else resize, resize if crop is None else crop, means, stds
    )


def check_device(name: str | None) -> None:
    """Refuse a device that is not there, before anything is loaded.

    Example:
        >>> check_device("cpu")
    """
    import torch

    if name is None:
        return
    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"the device {name!r} cannot be used here: {reason}") from error


@overload
def check_place(path: str, option: str) -> Path: ...
@overload
def check_place(path: str | None, option: str) -> Path | None: ...
def check_place(path: str | None, option: str) -> Path | None:
    """A file that can be written, found out before the work and not after it.

    Example:
        >>> check_place("/no/such/folder/x", "--out")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --out: there is no folder /no/such/folder
    """
    if path is None:
        return None
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {target.parent}")
    if target.is_dir():
        raise UsageError(f"{option}: {target} is a folder; name a file")
    if (target.exists() and not target.is_file()) or target.absolute().parent == Path("/dev"):
        # A file appears whole by being renamed to its place: /dev/null, or the link /dev/stdout,
        # would be replaced by it where one may do that.
        raise UsageError(f"{option}: {target} is a device or a pipe; name a file")
    check_writable(target.parent, option)
    return target


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder in which no file can be made.

    Rights alone do not tell: a disk that is read-only or full, or a system's own folder, has them.

    Example:
        >>> check_writable(Path("/proc"), "--out")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --out: the folder /proc may not be written to: No such \
file or directory
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{option}: the folder {folder} may not be written to: {error.strerror}"
        ) from error


def check_apart(written: "Mapping[str, str | None]", read: "Iterable[str | None]") -> None:
    """Refuse to write over what is read, or two things to one place.

    Args:
        written: The files that will be written, by option.
        read: What is read.

    Example:
        >>> check_apart({"--out": "a.parquet", "--json": "./a.parquet"}, ["d.safetensors"])
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --json: ./a.parquet is where --out is written; name \
another file
    """
    taken = {os.path.realpath(name): "read" for name in read if name is not None}
    for option, path in written.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in taken:
            how = "read here" if taken[place] == "read" else f"where {taken[place]} is written"
            raise UsageError(f"{option}: {path} is {how}; name another file")
        taken[place] = option


def check_folder(path: Path, option: str) -> None:
    """Refuse a folder that cannot be made or written to, before the work and not after it.

    Example:
        >>> check_folder(Path("/dev/null/x"), "--out")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: --out: /dev/null/x cannot be made, /dev/null is no folder
    """
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists() or p.is_symlink())
    if not nearest.is_dir():
        what = "is no folder" if nearest == path else f"cannot be made, {nearest} is no folder"
        raise UsageError(f"{option}: {path} {what}")
    check_writable(nearest, option)


def show_unreadable(errors: "Sequence[Unreadable]", count: int) -> None:
    """The first few inputs that could not be read, with the reason.

    Example:
        >>> show_unreadable([], 0)
    """
    for error in errors[:_SHOWN]:
        shown = f"row {error.row}, {error.path}: {error.reason}"
        typer.echo(f"  {visible(shown)}", err=True)
    if count > _SHOWN:
        typer.echo(f"  … and {count - _SHOWN:,} more", err=True)


def unreadable_as_json(errors: "Sequence[Unreadable]") -> list[dict[str, Any]]:
    """Inputs that could not be read, for `write_json`.

    Example:
        >>> from tulip_ood.data.batches import Unreadable
        >>> unreadable_as_json([Unreadable(3, "a.png", "the file is empty (0 bytes)")])
        [{'row': 3, 'path': 'a.png', 'reason': 'the file is empty (0 bytes)'}]
    """
    return [{"row": e.row, "path": e.path, "reason": e.reason} for e in errors]


def write_json(path: str | None, values: dict[str, Any]) -> None:
    """Results for programs; numbers that JSON does not know become null.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(f"{folder}/x.json", {"aurc": float("nan")})
        ...     Path(folder, "x.json").read_text().split()
        ['{', '"aurc":', 'null', '}']
    """
    if path is None:
        return
    from tulip_ood.network.files import appear

    text = json.dumps(json_values(values), indent=1, allow_nan=False) + "\n"
    appear(path, lambda partial: partial.write_text(text))
