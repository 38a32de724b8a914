"""Detector files: damaged, and well-formed with lies in them (the checksum is anyone's to make)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import tulip_ood
from tulip_ood.cli.like import OldDetector
from tulip_ood.detectors.saving import _content, read_header

from .fence import fuzz, survives
from .hostile import damaged, one_changed

METHODS = ("msp", "tulip", "knn", "mcd", "weiper", "tulip&knn", "auto")


@pytest.fixture(scope="module")
def network(vectors: Any) -> torch.nn.Module:
    """With dropout, so that every kind of file can be made from it."""
    return torch.nn.Sequential(*vectors.model[:-1], torch.nn.Dropout(0.2), vectors.model[-1])


@pytest.fixture(scope="module")
def files(network: Any, vectors: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One detector file for each method."""
    folder = tmp_path_factory.mktemp("detectors")
    x, y = vectors.val
    found = {}
    for name in METHODS:
        settings = {"repeats": 5} if name == "weiper" else {}
        detector = tulip_ood.detectors.make(name, network.eval(), **settings)
        more = {"recipe": "balanced"} if name == "tulip" else {}
        detector.fit([(x[:200], y[:200])], **more)
        found[name] = folder / f"{len(found)}.safetensors"
        detector.save(found[name])
    return found


def use(path: Path, network: torch.nn.Module) -> None:
    """All that is done with a detector file."""
    detector = tulip_ood.load(path, network)
    x = torch.linspace(-3, 3, 10).reshape(5, 2)
    detector.score(x)
    answer = detector.predict(x)
    list(map(str, answer.reason))
    str(detector.report())
    json.dumps(detector.report().to_dict())
    detector.set_threshold(false_alarm=0.1)


def write(path: Path, header: Any, tensors: dict[str, torch.Tensor]) -> None:
    """A file whose checksum is right."""
    if isinstance(header, dict):
        header["content_sha256"] = _content(header, tensors)
    save_file(tensors, path, {"tulip": json.dumps(header)})


@pytest.mark.parametrize("method", METHODS)
def test_whole_files_are_read(method: str, files: Any, network: Any) -> None:
    assert survives(lambda: use(files[method], network)) is None
    assert survives(lambda: OldDetector.read(str(files[method])).again(network, {})) is None


@fuzz(2)
@given(data=st.data(), method=st.sampled_from(METHODS))
def test_damage(data: Any, method: str, files: Any, network: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    path.write_bytes(data.draw(damaged(files[method].read_bytes())))
    survives(lambda: use(path, network))
    survives(lambda: read_header(path))


@fuzz(2)
@given(data=st.data(), method=st.sampled_from(METHODS))
def test_lies_in_the_header(
    data: Any, method: str, files: Any, network: Any, tmp_path: Path
) -> None:
    path = tmp_path / "d.safetensors"
    header = data.draw(one_changed(read_header(files[method])))
    write(path, header, load_file(files[method]))
    survives(lambda: use(path, network))
    survives(lambda: OldDetector.read(str(path)).again(network, {}))
    survives(lambda: OldDetector.read(str(path)).preprocess)


@fuzz(1)
@given(data=st.data(), method=st.sampled_from(METHODS))
def test_lies_in_the_tensors(
    data: Any, method: str, files: Any, network: Any, tmp_path: Path
) -> None:
    path = tmp_path / "d.safetensors"
    tensors = load_file(files[method])
    name = data.draw(st.sampled_from(sorted(tensors)))
    kind = data.draw(st.sampled_from(["gone", "dtype", "shape", "nan", "huge", "empty", "falling"]))
    value = tensors.pop(name)
    changes = {
        "dtype": lambda: value.to(data.draw(st.sampled_from([torch.int64, torch.float16]))),
        "shape": lambda: value.reshape(1, *value.shape)[:, :2].contiguous(),
        "nan": lambda: torch.full_like(value, float("nan")) if value.is_floating_point() else value,
        "huge": lambda: torch.full_like(value, 255) * (1e300 if value.is_floating_point() else 1),
        "empty": lambda: value[:0],
        "falling": lambda: value.flip(0).contiguous(),
    }
    if kind != "gone":
        tensors[name] = changes[kind]()
    write(path, read_header(files[method]), tensors)
    survives(lambda: use(path, network))
    survives(lambda: OldDetector.read(str(path)).again(network, {}))


@pytest.mark.parametrize(
    "raw",
    [
        "[" * 100_000,
        '{"format": Infinity}',
        '{"format": 9, "versions": []}',
        '{"format": ' + "9" * 5000 + "}",
        '{"format": 1}',
        "null",
        "\0",
    ],
)
def test_headers_that_are_no_headers(raw: str, network: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"tulip": raw})
    assert survives(lambda: read_header(path))
    assert survives(lambda: use(path, network))


@pytest.mark.parametrize("claimed", [2**62, 2**40, 100_000_000])
def test_a_file_that_claims_terabytes(claimed: int, network: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    shape = {"dtype": "F64", "shape": [claimed], "data_offsets": [0, 8 * claimed]}
    header = json.dumps({"x": shape, "__metadata__": {"tulip": "{}"}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert survives(lambda: use(path, network))
    path.write_bytes(claimed.to_bytes(8, "little") + header)
    assert survives(lambda: use(path, network))


@pytest.mark.parametrize(
    ("method", "place", "value"),
    [
        ("tulip", ("config", "n_samples"), 10**9),
        ("mcd", ("config", "n_samples"), 10**9),
        ("weiper", ("config", "repeats"), 10**9),
        ("msp", ("inputs", "shape"), [2**20, 2**20]),
        ("tulip&knn", ("config", "inner", "tulip", "n_samples"), 10**9),
    ],
)
def test_what_would_take_for_ever_is_refused_at_once(
    method: str, place: tuple[str, ...], value: Any, files: Any, network: Any, tmp_path: Path
) -> None:
    path = tmp_path / "d.safetensors"
    header = read_header(files[method])
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    write(path, header, load_file(files[method]))
    assert place[-1] in (survives(lambda: use(path, network)) or "")
