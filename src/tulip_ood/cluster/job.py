"""A job: what is scored, with what, and where it goes. The same for one process and for many.

The local engine and the cluster take up each other's unfinished work, because everything that
decides the rows is in the manifest and nothing else is.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import PIL
import torch
from torch import nn

from tulip_ood.data.opening import (
    all_class_folders,
    classes_of_outputs,
    number_folders,
    open_sources,
)
from tulip_ood.data.parts import Parts, describe_inputs, digest_of_file
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.remote import is_remote
from tulip_ood.data.remote_parts import parts_at
from tulip_ood.data.scores import score_schema
from tulip_ood.data.source import Source
from tulip_ood.data.vanished import there
from tulip_ood.detectors.saving import read_header
from tulip_ood.errors import DataError, InputError, warn
from tulip_ood.models.spec import load_model, spec_for
from tulip_ood.version import __version__

__all__ = [
    "Job",
    "Model",
    "check_unchanged",
    "make_network",
    "prepare",
    "stored_preprocess",
    "versions",
]

PART_ROWS = 1024
_CPU_BATCH, _GPU_BATCH = 64, 256

Model = str | Callable[[], nn.Module]


@dataclass(frozen=True)
class Job:
    """Everything that scoring needs to know; made by `prepare`.

    Attributes:
        detector: The detector's file.
        model: The spec of its network, or a function that makes it.
        trust: Whether a `.pt2` file may be opened.
        names: The inputs, as the user named them.
        source: Their rows.
        preprocess: How images are prepared; None for a source that is ready.
        batch_size: Inputs in one forward pass.
        device: Where passes run; None for where the network is.
        parts: The table.
        folders: Where inputs lie on this machine, of what was there when the job was prepared.

    Example:
        >>> from tulip_ood.data.source import ImageFiles
        >>> import pyarrow as pa
        >>> schema = pa.schema([pa.field("row", pa.int64())])
        >>> parts = Parts(Path("x.parquet"), schema, {}, rows=1, part_rows=1024)
        >>> source = ImageFiles("x", ["a.png"], [None])
        >>> job = Job("d.safetensors", "vit-b-16", False, ("x",), source, None, 64, None, parts)
        >>> len(job.parts)
        1
    """

    detector: str
    model: Model
    trust: bool
    names: tuple[str, ...]
    source: Source
    preprocess: Preprocess | None
    batch_size: int
    device: str | None
    parts: Parts
    folders: tuple[str, ...] = ()


def check_unchanged(job: Job, digest: str) -> None:
    """Refuse a detector's file that was written again since the job was prepared.

    Args:
        job: What is scored.
        digest: SHA-256 of the detector's file as it was used.

    Example:
        >>> from types import SimpleNamespace
        >>> parts = SimpleNamespace(manifest={"detector": "0a"})
        >>> check_unchanged(SimpleNamespace(detector="d.safetensors", parts=parts), "0b")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: d.safetensors was changed a moment ago: run the command again
    """
    if digest != job.parts.manifest["detector"]:
        raise DataError(f"{job.detector} was changed a moment ago: run the command again")


def make_network(model: Model, *, trust: bool = False) -> nn.Module:
    """The network that a spec or a function gives.

    Example:
        >>> make_network(lambda: nn.Linear(2, 3)).out_features
        3
    """
    return load_model(model, trust=trust).module if isinstance(model, str) else model().eval()


def prepare(
    detector: str | os.PathLike[str],
    inputs: str | Sequence[str],
    out: str | os.PathLike[str],
    *,
    model: Model | None = None,
    trust: bool = False,
    classes: Sequence[str] | None = None,
    root: str | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    part_rows: int = PART_ROWS,
    partitioned: bool = False,
) -> Job:
    """Look at everything that a job needs, before any of it is done.

    Args:
        detector: What `tulip calibrate` or `detector.save` wrote.
        inputs: Folders, image lists, parquet, npz or images, or one of these; paths, or URIs that
            pyarrow knows.
        out: The table to write; a path, or for a partitioned one a URI that pyarrow knows.
        model: The network's spec, or a function that makes it; by default the file's own spec,
            where opening that runs no code.
        trust: Whether a `.pt2` network may be opened although it can run code.
        classes: The names of the classes in the network's order, for class folders; empty for
            folders that are no classes.
        root: What the paths in image lists are relative to.
        batch_size: Inputs in one forward pass.
        device: Where passes run, for instance "cuda".
        part_rows: Rows in a part: what is done again at most when something dies.
        partitioned: Whether `out` is a folder of parts instead of one file.

    Example:
        >>> prepare("nowhere.safetensors", ["cats"], "scores.parquet")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: there is no detector file nowhere.safetensors
    """
    detector = os.fspath(detector)
    target = out if isinstance(out, str) and is_remote(out) else Path(out)
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if part_rows < 1:
        raise InputError(f"a part needs at least one row, got part_rows={part_rows}")
    if isinstance(target, Path):
        _check_place(target, partitioned)
    header = read_header(detector)
    spec = model if callable(model) else spec_for(model, header, detector)
    schema = score_schema(header["config"]["task"])
    names = _classes(header, inputs) if classes is None else tuple(classes)
    source = open_sources(inputs, classes=names, root=root)
    preprocess = stored_preprocess(header, source, detector)
    on_cpu = device is None or device.startswith("cpu")
    size = batch_size or (_CPU_BATCH if on_cpu else _GPU_BATCH)
    manifest = {
        "format": 1,
        "detector": digest_of_file(detector),
        "weights": header["weights_sha256"],
        "inputs": describe_inputs(source),
        "settings": {
            "batch_size": size,
            "part_rows": part_rows,
            "device": device,
            "classes": None if names is None else list(names),
            "root": root,
        },
        "versions": versions(),
    }
    parts = parts_at(target, schema, manifest, len(source), part_rows, partitioned)
    return Job(
        detector,
        spec,
        trust,
        tuple(inputs),
        source,
        preprocess,
        size,
        device,
        parts,
        there(source.folders()),
    )


def _check_place(target: Path, partitioned: bool) -> None:
    if not target.parent.is_dir():
        raise InputError(f"{target} cannot be written: there is no folder {target.parent}")
    if not partitioned and target.is_dir():
        raise InputError(f"{target} is a folder: name a file, or ask for a partitioned table")


def _classes(header: dict[str, Any], inputs: Sequence[str]) -> tuple[str, ...] | None:
    """The classes for class folders; none where these do not fit the network's outputs."""
    task, outputs = header["config"]["task"], header["facts"]["n_outputs"]
    try:
        return number_folders(
            all_class_folders(inputs),
            known=header["classes"],
            outputs=classes_of_outputs(task, outputs),
        )
    except DataError as error:
        warn(f"no labels are written: {error}")
        return ()


def stored_preprocess(header: dict[str, Any], source: Source, path: str) -> Preprocess | None:
    """How a detector's file says that images are prepared; None for a source that is ready.

    Args:
        header: The header of the detector file.
        source: The inputs.
        path: Where the detector file is.

    Example:
        >>> from types import SimpleNamespace
        >>> stored_preprocess({"preprocess": None}, SimpleNamespace(ready=True), "d.safetensors")
    """
    if source.ready:
        return None
    if header["preprocess"] is None:
        raise InputError(
            f"{path} does not say how images are prepared (it was fitted on arrays, or from "
            f"Python): score an npz file with floating x, or set "
            f"detector.provenance['preprocess'] = Preprocess(…).to_json() before saving"
        )
    return Preprocess.from_json(header["preprocess"])


def versions() -> dict[str, str]:
    """What computes: other releases may round otherwise, and one table has one arithmetic.

    Example:
        >>> sorted(versions())
        ['pillow', 'torch', 'tulip_ood']
    """
    return {"tulip_ood": __version__, "torch": str(torch.__version__), "pillow": PIL.__version__}
