"""Detector files: what goes in comes out, and everything else is refused with the reason."""

import copy
import json
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.detectors import saving
from tulip_ood.errors import FileFormatError, InputError, TulipWarning

pytestmark = pytest.mark.usefixtures("short_search")


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    problem = request.getfixturevalue("images")
    detector = tulip_ood.Tulip(problem.model).fit(problem.loader())
    detector.set_threshold(false_alarm=0.1)
    path = tmp_path_factory.mktemp("saved") / "detector.safetensors"
    detector.save(path)
    return detector, path


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    found: dict[str, Any] = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["tulip"])
    return found


def rewrite(path: Path, target: Path, change: Any, *, checksum: bool = True) -> Path:
    """The same file with another header."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["tulip"])
    change(header, tensors)
    if checksum:
        header["content_sha256"] = saving._content(header, tensors)
    save_file(tensors, target, metadata={"tulip": json.dumps(header)})
    return target


def test_a_loaded_detector_is_the_saved_one(saved: Any, images: Any) -> None:
    detector, path = saved
    again = tulip_ood.load(path, images.model)
    assert torch.equal(again.score(images.ood), detector.score(images.ood))
    one, two = again.predict(images.ood), detector.predict(images.ood)
    for name in ("label", "probs", "p_value", "accepted", "bound", "stretch"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert [str(r) for r in one.reason] == [str(r) for r in two.reason]
    assert again.threshold == detector.threshold
    assert again.report().to_dict() == detector.report().to_dict()
    again.set_threshold(false_alarm=0.2)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_settings_survive(images: Any, tmp_path: Path) -> None:
    start = {n: 0.9 * p.detach() for n, p in images.model.named_parameters()}
    detector = tulip_ood.Tulip(
        images.model,
        score="gen",
        n_samples=3,
        delta=4.0,
        scope=["3.*", "4.*", "7.*"],
        layer_scale=lambda name: 0.5 if name.startswith("4") else 1.0,
        initial_mean=start,
        seed=11,
        antithetic=False,
        hold=False,
    ).fit(images.loader(), recipe="balanced")
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", images.model)
    assert torch.equal(again.score(images.ood), detector.score(images.ood))
    assert again._settings() == detector._settings()


def test_there_is_no_pickle_in_the_file(saved: Any) -> None:
    raw = saved[1].read_bytes()
    with pytest.raises(ValueError, match=r".*"):
        list(pickletools.genops(raw))
    assert b"torch._utils" not in raw


def test_the_header_says_what_the_file_is(saved: Any) -> None:
    header = header_of(saved[1])
    assert header["format"] == 1
    assert header["recipe"] == "self-2"
    assert len(header["golden"]) == 16
    assert {"weights_sha256", "architecture_sha256", "noise_checksum", "versions", "fitted"} <= set(
        header
    )
    assert header["model_spec"] is None
    assert saving.read_header(saved[1]) == header


def test_another_model_is_refused(saved: Any, images: Any) -> None:
    changed = copy.deepcopy(images.model)
    with torch.no_grad():
        changed[0].weight[0, 0, 0, 0] += 1e-3
    with pytest.raises(FileFormatError, match="fitted on other weights.*--like"):
        tulip_ood.load(saved[1], changed)
    statistics = copy.deepcopy(images.model)
    statistics[1].running_mean += 1e-3
    with pytest.raises(FileFormatError, match="fitted on other weights"):
        tulip_ood.load(saved[1], statistics)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(FileFormatError, match="another architecture"):
        tulip_ood.load(saved[1], other)


def test_arguments_in_the_wrong_order(saved: Any, images: Any) -> None:
    said = r"a network \(Sequential\) first and the path second; expected the path.*then the netw"
    with pytest.raises(InputError, match=said):
        tulip_ood.load(images.model, saved[1])
    with pytest.raises(InputError, match=r"a network \(Sequential\) first; expected the path"):
        tulip_ood.load(images.model, images.model)
    with pytest.raises(InputError, match=r'given int as the path.*load\("detector.safetensors", m'):
        tulip_ood.load(3, images.model)  # type: ignore[arg-type]


def test_paths_that_are_none(saved: Any) -> None:
    for given in (None, 3, b"d.safetensors"):
        said = rf"save was given {type(given).__name__}; expected the path of the file to write"
        with pytest.raises(InputError, match=said):
            saved[0].save(given)
    with pytest.raises(InputError, match="export was given NoneType as the path"):
        tulip_ood.export(saved[0], None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a fitted detector.*got str"):
        tulip_ood.export("gate.onnx", saved[0])  # type: ignore[arg-type]


def test_a_device_that_is_none(saved: Any, images: Any) -> None:
    detector = tulip_ood.load(saved[1], images.model)
    with pytest.raises(InputError, match="device='gpu' cannot be used here"):
        detector.to("gpu")
    assert torch.equal(detector.score(images.ood), saved[0].score(images.ood))


def test_the_same_network_in_other_numbers(saved: Any, images: Any) -> None:
    for kind, model in {
        "float64": copy.deepcopy(images.model).double(),
        "float16": copy.deepcopy(images.model).half(),
        "float16 and float32": nn.Sequential(*copy.deepcopy(images.model)),
    }.items():
        if " and " in kind:
            model[0].half()
        said = rf"in float32, and this model is in {kind}: give the model in float32 \(model.float"
        with pytest.raises(FileFormatError, match=said):
            tulip_ood.load(saved[1], model)


def test_a_file_that_does_not_say_its_numbers(saved: Any, images: Any, tmp_path: Path) -> None:
    path = rewrite(saved[1], tmp_path / "t.safetensors", lambda h, t: h.pop("weights_dtypes"))
    assert tulip_ood.load(path, images.model).name == "tulip"
    with pytest.raises(FileFormatError, match="fitted on other weights"):
        tulip_ood.load(path, copy.deepcopy(images.model).double())


def test_a_truncated_file_is_refused(saved: Any, images: Any, tmp_path: Path) -> None:
    raw = saved[1].read_bytes()
    for size in (0, 4, 100, len(raw) // 2, len(raw) - 1):
        broken = tmp_path / "broken.safetensors"
        broken.write_bytes(raw[:size])
        with pytest.raises(FileFormatError, match="damaged or no detector file"):
            tulip_ood.load(broken, images.model)


def test_altered_bytes_are_refused(saved: Any, images: Any, tmp_path: Path) -> None:
    raw = bytearray(saved[1].read_bytes())
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        where = int(torch.randint(len(raw), (1,), generator=generator))
        altered = bytearray(raw)
        altered[where] ^= 1
        path = tmp_path / "altered.safetensors"
        path.write_bytes(altered)
        if says_the_same(path, saved[1]):
            continue
        with pytest.raises(FileFormatError):
            tulip_ood.load(path, images.model)


def says_the_same(altered: Path, path: Path) -> bool:
    """The last digit of a number may be beyond what a double holds."""
    try:
        same = header_of(altered) == header_of(path)
    except (ValueError, KeyError, MemoryError):
        return False
    size = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    return same and altered.read_bytes()[size:] == path.read_bytes()[size:]


def test_an_altered_number_is_refused(saved: Any, images: Any, tmp_path: Path) -> None:
    def tamper(header: Any, tensors: Any) -> None:
        header["threshold"]["value"] = 99.0

    path = rewrite(saved[1], tmp_path / "t.safetensors", tamper, checksum=False)
    with pytest.raises(FileFormatError, match="altered after it was written"):
        tulip_ood.load(path, images.model)


def test_golden_inputs_that_score_otherwise_are_refused(
    saved: Any, images: Any, tmp_path: Path
) -> None:
    def tamper(header: Any, tensors: Any) -> None:
        header["fitted"]["scoring"]["trace_xx"] *= 1.5

    path = rewrite(saved[1], tmp_path / "t.safetensors", tamper)
    with pytest.raises(FileFormatError, match="does not score its golden inputs as it did"):
        tulip_ood.load(path, images.model)


def test_other_noise_is_named(saved: Any, images: Any, tmp_path: Path) -> None:
    def tamper(header: Any, tensors: Any) -> None:
        header["noise_checksum"] = "0" * 32

    path = rewrite(saved[1], tmp_path / "t.safetensors", tamper)
    with pytest.raises(FileFormatError, match="other noise than this release draws"):
        tulip_ood.load(path, images.model)


def test_noise_of_probabilities_alone_is_checked_too(images: Any, tmp_path: Path) -> None:
    """With J = 0 the score needs none, but `predict` does."""
    with pytest.warns(TulipWarning, match="J = 0"):
        detector = tulip_ood.Tulip(images.model, j=0.0).fit(images.loader(), recipe="balanced")
    assert detector.fitted.j_probs > 0
    detector.save(tmp_path / "d.safetensors")
    assert header_of(tmp_path / "d.safetensors")["noise_checksum"]

    def tamper(header: Any, tensors: Any) -> None:
        header["noise_checksum"] = "0" * 32

    path = rewrite(tmp_path / "d.safetensors", tmp_path / "t.safetensors", tamper)
    with pytest.raises(FileFormatError, match="other noise than this release draws"):
        tulip_ood.load(path, images.model)


def test_a_newer_format_is_refused(saved: Any, images: Any, tmp_path: Path) -> None:
    def tamper(header: Any, tensors: Any) -> None:
        header["format"] = 2
        header["versions"]["tulip_ood"] = "9.0"

    path = rewrite(saved[1], tmp_path / "t.safetensors", tamper)
    with pytest.raises(FileFormatError, match=r"format 2, made by tulip-ood 9.0.*upgrade"):
        tulip_ood.load(path, images.model)


@pytest.mark.parametrize("missing", ["config", "fitted", "golden", "threshold", "inputs"])
def test_a_header_with_a_hole_is_refused(
    saved: Any, images: Any, tmp_path: Path, missing: str
) -> None:
    path = rewrite(saved[1], tmp_path / "t.safetensors", lambda h, t: h.pop(missing))
    with pytest.raises(FileFormatError):
        tulip_ood.load(path, images.model)


def test_other_files_are_refused(images: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(FileFormatError, match="but not of a detector"):
        tulip_ood.load(tmp_path / "weights.safetensors", images.model)
    with pytest.raises(FileFormatError, match="there is no detector file"):
        tulip_ood.load(tmp_path / "missing.safetensors", images.model)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileFormatError, match="there is no detector file .*: that is a folder"):
        tulip_ood.load(tmp_path / "folder", images.model)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        ("Was ist das? – ein Brief".encode() * 40, "text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "an image"),
        (b"\xff\xd8\xff\xe0" + bytes(200), "an image"),
        (pickle.dumps({"a": 1}), "a pickle, which could run code and is not opened"),
        (b"\x08\x0a\x12\x07pytorch" + bytes(99), "an ONNX file"),
        (b"PAR1" + bytes(99), "a parquet table"),
    ],
)
def test_a_file_of_another_kind_is_named(
    images: Any, tmp_path: Path, content: bytes, what: str
) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"no detector file: it is {what}.*\. Expected what"):
        tulip_ood.load(tmp_path / "x", images.model)


def test_a_checkpoint_is_named(images: Any, tmp_path: Path) -> None:
    torch.save(images.model.state_dict(), tmp_path / "x")
    with pytest.raises(FileFormatError, match=r"it is a zip archive \(torch.save and torch.exp"):
        tulip_ood.load(tmp_path / "x", images.model)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_what_a_file_cannot_hold(images: Any, tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = images.model

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return self.inner(x), 1

    pick = lambda out: out[0]  # noqa: E731
    detector = tulip_ood.Tulip(Wrapped(), output=pick).fit(images.loader(), recipe="balanced")
    detector.save(tmp_path / "d.safetensors")
    with pytest.raises(InputError, match="pass it to load"):
        tulip_ood.load(tmp_path / "d.safetensors", Wrapped())
    again = tulip_ood.load(tmp_path / "d.safetensors", Wrapped(), output=pick)
    assert torch.equal(again.score(images.ood), detector.score(images.ood))


def test_a_failed_save_leaves_the_old_file(
    saved: Any, images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, _ = saved
    path = tmp_path / "d.safetensors"
    detector.save(path)
    before = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("tulip_ood.network.files.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        detector.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["d.safetensors"]


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_regression_detector_that_found_no_spread(tmp_path: Path) -> None:
    """J* = 0: two fields hold the same tensor, and a file must hold it twice."""
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    y = torch.randn(100, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    detector = tulip_ood.Tulip(model, task="regression", lam=1e6).fit([(x, y)], recipe="balanced")
    assert detector._state.j_star == 0.0
    detector.save(tmp_path / "d.safetensors")
    assert torch.equal(
        tulip_ood.load(tmp_path / "d.safetensors", model).score(x), detector.score(x)
    )


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_loaded_detector_can_be_saved_again(saved: Any, images: Any, tmp_path: Path) -> None:
    again = tulip_ood.load(saved[1], images.model)
    again.save(tmp_path / "again.safetensors")
    one, two = header_of(saved[1]), header_of(tmp_path / "again.safetensors")
    assert one == two


def test_numbers_of_numpy_and_pytorch_can_be_saved(vectors: Any, tmp_path: Path) -> None:
    """They compare like Python's, so that nobody notices before a file is to be written."""
    detector = tulip_ood.Tulip(
        vectors.model,
        epsilon=np.float32(0.01),
        n_samples=np.int64(4),
        j=torch.tensor(3.0),
        layer_scale={"*": np.float32(1.5)},
    ).fit(vectors.loader(), recipe="balanced")
    detector.set_threshold(false_alarm=np.float32(0.1))
    detector.set_threshold(max_error=torch.tensor(0.5), confidence=np.float32(0.9))
    detector.save(tmp_path / "a.safetensors")
    again = tulip_ood.load(tmp_path / "a.safetensors", vectors.model)
    assert torch.equal(again.score(vectors.ood), detector.score(vectors.ood))
    assert again.threshold == detector.threshold
    knn = tulip_ood.detectors.make("knn", vectors.model, k=np.int64(3)).fit(vectors.loader())
    knn.save(tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="false_alarm must be a number, got '5 %'"):
        knn.set_threshold(false_alarm="5 %")
