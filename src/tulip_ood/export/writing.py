"""From a fitted detector to a file that needs neither this library nor, as ONNX, PyTorch."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.answering import need_detector
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError, ModelError, TulipError
from tulip_ood.export.artefact import METADATA, Artefact, open_onnx, open_pt2
from tulip_ood.export.exportable import check_exportable
from tulip_ood.export.header import describe, input_names
from tulip_ood.export.judging import Judge
from tulip_ood.export.onnx_model import build_onnx
from tulip_ood.export.parity import Parity, ParityError, check_parity, held
from tulip_ood.export.passing import Passing, Prepare, WholeDetector, input_tensors
from tulip_ood.export.plan import Plan, check_size
from tulip_ood.export.portable import Portable
from tulip_ood.models.extras import import_extra
from tulip_ood.network.files import appear
from tulip_ood.network.quiet import quiet_export, why_not_exported

__all__ = ["FORMATS", "Written", "check_format", "export_detector"]

FORMATS = ("onnx", "pt2")


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        path: Where it is.
        plan: What it was expected to be.
        parity: How near it is to the detector.
        megabytes: Its size.

    Example:
        >>> Written("a.onnx", None, Parity(1000, 1e-6, 1e-7, 0, 0), 1.5).parity.holds
        True
    """

    path: str
    plan: Plan
    parity: Parity
    megabytes: float


def export_detector(
    detector: Detector,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    preprocess: Preprocess | bool = False,
    check: Iterable[Any] | None = None,
    announce: Callable[[Plan], None] | None = None,
) -> Written:
    """Write a fitted detector, its network and all perturbed weights into one file.

    The file is compared with the detector before it appears; if they differ by more than 1e-4 of
    the validation scores' range, nothing is written.

    Args:
        detector: Fitted.
        path: Where to; ends in .onnx or .pt2.
        format: "onnx" or "pt2", where the path does not say.
        preprocess: Take pixels, uint8 [N, H, W, C] of the network's size, and normalise them
            inside: as given, or (True) as the detector's file says.
        check: Batches of inputs to compare on, beside synthetic ones; 1,000 at most are taken.
        announce: Called with the size and the cost before anything is written.

    Example:
        >>> import tempfile, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.Entropy(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = tulip_ood.export(detector, f"{folder}/ent.pt2", check=[(x, y)])
        ...     sorted(os.listdir(folder)), written.parity.n_inputs
        (['ent.pt2'], 249)
    """
    need_detector(detector)
    kind = check_format(path, format)
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            import_extra(package, extra="export", spec="an ONNX file")
    detector = detector._view()
    check_exportable(detector)
    prepare = _prepare(detector, preprocess)
    check_size(detector, kind)
    job = _Job(detector, path, kind, prepare, preprocess, check)
    own = detector.network.dtype
    first = torch.float32 if kind == "onnx" else own  # few runtimes know float64 convolutions
    if first != own and check is not None:
        job = replace(job, check=held(check))  # it may be read twice
    try:
        return job.write(first, announce)
    except ParityError as error:
        if first == own:
            raise
        try:
            return job.write(own, None)
        except TulipError:  # what float64 lacks is not what the user has to know
            raise error from None


def check_format(path: str | os.PathLike[str], format: str | None) -> str:  # noqa: A002
    """The format that a path or a user names.

    Example:
        >>> check_format("gate.onnx", None), check_format("gate", "pt2")
        ('onnx', 'pt2')
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"export was given {type(path).__name__} as the path of the file to write; expected "
            f'text, as in export(detector, "gate.onnx")'
        )
    suffix = os.path.splitext(path)[1].removeprefix(".").lower()
    kind = format or suffix
    if kind not in FORMATS or (suffix in FORMATS and suffix != kind):
        raise InputError(
            f"{path}: the file must end in .onnx or .pt2, or its format be given (--format onnx, "
            f"format='onnx') and not be another{'' if format is None else f'; got {format!r}'}"
        )
    return kind


def _prepare(detector: Detector, preprocess: Preprocess | bool) -> Prepare | None:
    if isinstance(preprocess, Preprocess):
        return Prepare(preprocess)
    if not preprocess:
        return None
    stored = detector.provenance["preprocess"]
    if stored is None:
        raise InputError(
            "the detector does not know how images are prepared (it was fitted on arrays, or from "
            "Python): pass preprocess=Preprocess(…), or take prepared inputs"
        )
    return Prepare(Preprocess.from_json(stored))


@dataclass(frozen=True)
class _Job:
    """All that decides what is written, but for the dtype of the passes."""

    detector: Detector
    path: str | os.PathLike[str]
    kind: str
    prepare: Prepare | None
    preprocess: Preprocess | bool
    check: Iterable[Any] | None

    def write(self, dtype: torch.dtype, announce: Callable[[Plan], None] | None) -> Written:
        """Write, compare, let it appear."""
        detector = self.detector
        portable = Portable.of(detector, dtype)
        plan = Plan.of(detector, portable, self.kind)
        if announce is not None:
            announce(plan)
        header = describe(detector, plan, self.prepare, portable)
        if isinstance(self.preprocess, Preprocess):
            header["preprocess"] = self.preprocess.to_json()
        judge = Judge(detector, drifts=portable.drifts)
        passing = Passing(portable)
        found: list[Parity] = []

        def write(partial: Path) -> None:
            make = _write_onnx if self.kind == "onnx" else _write_pt2
            artefact = make(partial, portable, passing, judge, self.prepare, header)
            found.append(check_parity(detector, artefact, self.prepare, self.check))

        appear(self.path, write)
        return Written(os.fspath(self.path), plan, found[0], os.path.getsize(self.path) / 1e6)


def _write_onnx(
    path: Path,
    portable: Portable,
    passing: Passing,
    judge: Judge,
    prepare: Prepare | None,
    header: dict[str, Any],
) -> Artefact:
    names, about = input_names(portable.example), {METADATA: json.dumps(header)}
    model = build_onnx(portable, passing, judge, prepare, names, about)
    path.write_bytes(model.SerializeToString())
    return open_onnx(path)


def _write_pt2(
    path: Path,
    portable: Portable,
    passing: Passing,
    judge: Judge,
    prepare: Prepare | None,
    header: dict[str, Any],
) -> Artefact:
    whole = WholeDetector(passing, portable, judge, prepare)
    given = input_tensors(portable.example)
    if prepare is not None:
        given = (prepare.pixels(given[0]),)
    rows = {0: torch.export.Dim("rows", min=1)}
    with torch.no_grad(), quiet_export(), open(path, "wb") as file:
        try:
            program = torch.export.export(
                whole, (given,), dynamic_shapes=(tuple(rows for _ in given),), strict=False
            )
        except Exception as error:
            raise ModelError(
                f"the network cannot be written as .pt2: {why_not_exported(error)}"
            ) from error
        program.graph.eliminate_dead_code()  # what is looked at in the base pass alone
        torch.export.save(program, file, extra_files={f"{METADATA}.json": json.dumps(header)})
    return open_pt2(path)
