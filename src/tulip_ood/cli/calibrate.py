"""`tulip calibrate`: fit a detector for a network and write it to a file."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import Stopped, UsageError, as_usage
from tulip_ood.cli.fitting import BATCH, check_labels, fit
from tulip_ood.cli.like import Comparison, OldDetector, compare
from tulip_ood.cli.numbering import check_outputs, folder_classes
from tulip_ood.cli.settings import (
    check_settings,
    fit_arguments,
    method_and_settings,
    threshold_arguments,
)
from tulip_ood.errors import FileFormatError
from tulip_ood.wording import counted, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from tulip_ood.data.batches import Unreadable
    from tulip_ood.data.preprocess import Preprocess
    from tulip_ood.data.source import Source
    from tulip_ood.detectors.base import Detector

__all__ = ["calibrate"]

_OTHER_FILES = {".onnx", ".pt", ".pt2", ".pth", ".ckpt", ".bin", ".pkl", ".json", ".parquet"}


def calibrate(
    model: options.Model,
    data: Annotated[
        list[str],
        typer.Option(
            "--data", metavar="SRC", help="Labelled validation data: folder, list, parquet or npz."
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The detector file to write.")],
    recipe: Annotated[
        str | None, typer.Option(help="self (default), balanced or paper.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="tulip (default), or another of `tulip methods`; with settings: auto[strength=2]."
        ),
    ] = None,
    score: Annotated[str | None, typer.Option(help="ent, msp, gen, mls, ebo or bound.")] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option("--tune", metavar="SRC", help="Real OOD inputs to search against."),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="M", help="Noisy passes, or auto; for auto also 0.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the size of the noise.")] = None,
    drift: Annotated[
        str | None, typer.Option(help="pass (default), or norm: D := ‖f(z)‖, one pass less.")
    ] = None,
    lam: Annotated[float | None, typer.Option(help="λ, the weight of the drift.")] = None,
    j: Annotated[float | None, typer.Option(help="J, the strength.")] = None,
    scope: Annotated[
        str | None,
        typer.Option(help="all, head, last-block, last-stage, auto, or globs with commas."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the noise and of the split.")] = None,
    task: Annotated[
        str | None, typer.Option(help="classification, binary, multilabel, regression or dense.")
    ] = None,
    resize: Annotated[int | None, typer.Option(help="The shorter side after resizing.")] = None,
    crop: Annotated[int | None, typer.Option(help="The side of the centre crop.")] = None,
    mean: Annotated[str | None, typer.Option(help="Of the channels, as 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Of the channels.")] = None,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    workers: options.Workers = None,
    false_alarm: Annotated[
        float | None, typer.Option(help="Refuse at most this share of ID inputs (default 0.05).")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Accepted answers are wrong at most this often.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="With --max-error: how surely (default 0.95).")
    ] = None,
    trust: options.Trust = False,
    like: Annotated[
        str | None,
        typer.Option(metavar="OLD", help="Fit as this detector file was, and compare with it."),
    ] = None,
    json: options.Json = None,
) -> None:
    """Fit a detector on labelled validation data that training has not seen.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["calibrate", "resnet50"]).exit_code
        2
    """
    target = options.check_place(out, "--out")
    options.check_place(json, "--json")
    options.check_apart({"--out": out, "--json": json}, [model, *data])
    asked = threshold_arguments(false_alarm, max_error, confidence)
    settings = {
        "score": score,
        "n_samples": _samples(samples),
        "epsilon": epsilon,
        "drift": drift,
        "lam": lam,
        "j": j,
        "scope": scope.split(",") if scope and "," in scope else scope,
        "seed": seed,
        "task": task,
    }
    with as_usage():
        from tulip_ood.data.opening import open_sources, read_classes
        from tulip_ood.detectors.registry import make
        from tulip_ood.errors import ThresholdError
        from tulip_ood.models.spec import load_model
        from tulip_ood.numerics.random import check_seed

        _check_own(target)
        options.check_device(device)
        if seed is not None:
            check_seed(seed)
        old = None if like is None else OldDetector.read(like)
        method, own = method_and_settings(method)
        method = _method(method, old)
        given = check_settings(method, settings, own)
        loaded = load_model(model, trust=trust)
        named = None if classes is None else read_classes(classes)
        known = loaded.classes or (None if old is None else old.classes)
        numbered = folder_classes(data, given=named, known=known)
        source = open_sources(data, classes=numbered, root=root)
        check_labels(source, "--data")
        ood = None if not tune else open_sources(tune, classes=(), root=root)
        preprocess = options.choose_preprocess(
            loaded.preprocess or (None if old is None else old.preprocess),
            images=not source.ready or (ood is not None and not ood.ready),
            resize=resize,
            crop=crop,
            mean=mean,
            std=std,
            spec=model,
        )
        where = {"device": device, "batch_size": batch_size}
        if old is None:
            detector = make(method, loaded.module, **given, **where)
        else:
            detector = old.again(loaded.module, given, **where)
            recipe = recipe or old.recipe
        searched = None if ood is None else _inputs(ood, preprocess, workers)
        how = fit_arguments(method, recipe=recipe, tune=searched)
    if named is None and known is None:
        check_outputs(data, detector.network, source, preprocess)
    try:
        errors = fit(detector, source, preprocess, batch_size=batch_size, workers=workers, **how)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {target} was not written, fitting has to begin anew") from None
    impossible = None
    try:
        if asked or (old is not None and old.target):
            detector.set_threshold(**(asked or (old.target if old is not None else {})))
    except ThresholdError as error:
        impossible = error  # the fit may have taken hours: it is not thrown away for that
    names = named or known or source.classes
    detector.provenance = {
        "model_spec": loaded.spec,
        "preprocess": None if preprocess is None or source.ready else preprocess.to_json(),
        "classes": None if names is None else list(names),
    }
    if preprocess is not None and not source.ready:
        detector.provenance["preprocess_sha256"] = preprocess.fingerprint
    detector.save(target)
    _show(detector, target, errors, _compared(old, detector), json)
    if impossible is not None:
        kept = detector.threshold
        promise = "" if kept is None else f" (refuses at most {percent(kept.target)} of ID inputs)"
        raise UsageError(
            f"{impossible}. The fitted detector is kept: {target} has the default "
            f"threshold{promise}"
        )


def _samples(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--samples takes a whole number or auto, got {text!r}") from None


def _check_own(target: "Path") -> None:
    """Write over a detector, not over a program or a picture that a slip of the hand has named."""
    from tulip_ood.detectors.saving import read_header

    if target.suffix.lower() in _OTHER_FILES:
        raise UsageError(
            f"--out {target}: a detector file is safetensors, which such a name hides; name it "
            f"{target.with_suffix('.safetensors')} (tulip export makes .onnx and .pt2 of it)"
        )
    if not target.exists() or not target.stat().st_size:
        return
    try:
        read_header(target)
    except FileFormatError as error:
        raise UsageError(
            f"--out: {target} is there already, and is no detector file: name another file, or "
            f"remove it"
        ) from error


def _method(method: str | None, old: OldDetector | None) -> str:
    if old is None:
        return method or "tulip"
    if method not in (None, old.method):
        raise UsageError(f"--like keeps the method of {old.path}, {old.method}: leave out --method")
    return old.method


def _inputs(
    ood: "Source", preprocess: "Preprocess | None", workers: int | None
) -> "Iterator[Tensor]":
    from tulip_ood.data.batches import batches

    for batch in batches(ood, preprocess, batch_size=BATCH, workers=workers):
        if batch.inputs is not None:
            yield batch.inputs


def _compared(old: OldDetector | None, detector: "Detector") -> Comparison | None:
    if old is None or old.threshold is None or detector.threshold is None:
        return None
    return compare((old.calibration, old.threshold), (detector.calibration, detector.threshold))


def _show(
    detector: "Detector",
    target: "Path",
    errors: "Sequence[Unreadable]",
    comparison: Comparison | None,
    json: str | None,
) -> None:
    from rich.console import Console
    from rich.table import Table

    report = detector.report()
    typer.echo(str(report))
    if comparison is not None:
        table = Table("", "old", "new", box=None, header_style="bold")
        for line in comparison.lines():
            table.add_row(*line)
        Console().print(table)
    if errors:
        typer.echo(f"{counted(len(errors), 'input')} could not be read, left out:", err=True)
        options.show_unreadable(errors, len(errors))
    typer.echo(f"wrote {target}")
    found: dict[str, Any] = report.to_dict() | detector.provenance | {"detector": str(target)}
    found["unreadable"] = options.unreadable_as_json(errors)
    found["comparison"] = None if comparison is None else comparison.to_dict()
    options.write_json(json, found)
