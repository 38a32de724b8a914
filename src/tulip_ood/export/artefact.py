"""An artefact, opened again: for a look at it from Python (a server needs onnxruntime alone)."""

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.export.header import FORMAT, GOLDEN_INPUTS
from tulip_ood.export.judging import OUTPUTS
from tulip_ood.export.passing import Prepare, input_tensors
from tulip_ood.models.extras import import_extra, one_line
from tulip_ood.network.golden import synthetic_inputs
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.looks import absent
from tulip_ood.wording import counted, from_json

__all__ = ["METADATA", "Artefact", "load", "open_onnx", "open_pt2"]

METADATA = "tulip"  # where the header is: a key of ONNX's metadata, a file in a .pt2
Answer = dict[str, NDArray[Any]]
_Run = Callable[[list[NDArray[Any]]], list[NDArray[Any]]]


class Artefact:
    """A detector in a file of its own. Made by `load`.

    Attributes:
        header: What it says of itself.

    Example:
        >>> import tempfile, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tulip_ood.export(detector, f"{folder}/msp.onnx")
        ...     artefact = tulip_ood.export.load(f"{folder}/msp.onnx")
        >>> answer = artefact(x[:5])
        >>> answer["score"].shape, artefact.header["method"]
        ((5,), 'msp')
    """

    def __init__(self, header: dict[str, Any], run: _Run) -> None:
        self.header = header
        self._run = run

    @property
    def names(self) -> tuple[str, ...]:
        """What its inputs are called."""
        return tuple(one["name"] for one in self.header["inputs"])

    def __call__(self, inputs: Inputs) -> Answer:
        """The answers, by name: see `header["outputs"]`.

        Args:
            inputs: As the network takes them (or pixels), tensors or arrays; none of them, if
                that is how many there are.
        """
        expected = self.header["inputs"]
        arrays = [t.numpy() for t in input_tensors(inputs)]
        if len(arrays) != len(expected):
            raise InputError(
                f"expected {', '.join(self.names)}; got {counted(len(arrays), 'input')}"
            )
        for one, array in zip(expected, arrays, strict=True):
            if list(array.shape[1:]) != one["shape"] or str(array.dtype) != one["dtype"]:
                raise InputError(
                    f"{one['name']} must be {one['dtype']} {['N', *one['shape']]}, got "
                    f"{array.dtype} {list(array.shape)}"
                )
        rows = len(arrays[0])
        if not rows:  # runtimes, and networks, need not know what to make of no inputs
            arrays = [np.zeros((1, *one.shape[1:]), dtype=one.dtype) for one in arrays]
        return {n: a[:rows] for n, a in zip(OUTPUTS, self._run(arrays), strict=True)}

    def golden_gap(self) -> float:
        """How far the golden inputs score from where the detector had them, in score ranges."""
        golden = synthetic_inputs(self.header["golden"]["inputs"], GOLDEN_INPUTS)
        if self.header["prepares_pixels"]:
            preprocess = Preprocess.from_json(self.header["preprocess"])
            golden = Prepare(preprocess).pixels(golden)
        then = np.array(self.header["golden"]["scores"])
        apart = np.abs(self(golden)["score"] - then)[np.isfinite(then)]
        spread = float(self.header["calibration"]["spread"])
        return float(apart.max(initial=0.0)) / max(spread, 1e-12)


def load(path: str | os.PathLike[str], *, trust: bool = False) -> Artefact:
    """Open what `tulip export` wrote.

    Args:
        path: An .onnx or a .pt2 file.
        trust: Whether a .pt2 file, which can run code when it is loaded, may be opened.

    Example:
        >>> load("nowhere.onnx")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: there is no file nowhere.onnx
    """
    if not Path(path).is_file():
        raise FileFormatError(absent(path, "file"))
    if not zipfile.is_zipfile(path):
        return open_onnx(path)
    if not trust:
        raise InputError(
            f"{path}: a .pt2 file can run code when it is loaded; if you trust where it comes "
            f"from, say so with trust=True (--trust)"
        )
    return open_pt2(path)


def open_onnx(path: str | os.PathLike[str]) -> Artefact:
    """With onnxruntime, on the CPU.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:  # empty
        ...     open_onnx(file.name)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: ... is damaged or no ONNX file: ...
    """
    runtime = import_extra("onnxruntime", extra="export", spec="an ONNX file")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors: it warns of what it rounds otherwise
    try:
        session = runtime.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise FileFormatError(f"{path} is damaged or no ONNX file: {one_line(error)}") from error
    header = _header(session.get_modelmeta().custom_metadata_map.get(METADATA), path)
    names = [one["name"] for one in header["inputs"]]
    ends = [
        {value.name for value in side} for side in (session.get_inputs(), session.get_outputs())
    ]
    if ends != [set(names), set(OUTPUTS)]:
        raise FileFormatError(f"{path} has other inputs or outputs than it says")

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        fed = dict(zip(names, arrays, strict=True))
        found: list[NDArray[Any]] = session.run(list(OUTPUTS), fed)
        return found

    return Artefact(header, run)


def open_pt2(path: str | os.PathLike[str]) -> Artefact:
    """With PyTorch. The file can run code: `load` asks for trust first.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:  # empty
        ...     open_pt2(file.name)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: ... cannot be loaded: ...
    """
    extra = {f"{METADATA}.json": ""}
    try:
        with open(path, "rb") as file:
            module = torch.export.load(file, extra_files=extra).module()
    except Exception as error:
        raise FileFormatError(f"{path} cannot be loaded: {one_line(error)}") from error

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.no_grad():
            found: tuple[Tensor, ...] = module(tuple(torch.from_numpy(a) for a in arrays))
        return [t.numpy() for t in found]

    return Artefact(_header(extra[f"{METADATA}.json"], path), run)


def _header(text: str | bytes | None, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        header = from_json(text or "null")
    except ValueError:
        header = None
    if not isinstance(header, Mapping) or header.get("format") != FORMAT:
        raise FileFormatError(f"{path} holds no detector: `tulip export` has not written it")
    try:
        for one in header["inputs"]:
            _ = str(one["name"]), str(one["dtype"]), list(one["shape"])
        _ = [float(score) for score in header["golden"]["scores"]], header["golden"]["inputs"]
        _ = float(header["calibration"]["spread"]), header["preprocess"], header["prepares_pixels"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{path} has a damaged header: {one_line(error)}") from error
    return dict(header)
