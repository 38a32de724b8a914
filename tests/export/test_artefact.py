"""An artefact answers as its detector does, without this library and without PyTorch."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import FileFormatError, InputError

from .plain import close, run_plainly


@pytest.fixture(scope="module")
def thousand(images: Any) -> Tensor:
    return torch.cat([images.test[0], images.ood, -images.ood[:200]])


@dataclass(frozen=True)
class Gate:
    """A detector and the file that was made of it."""

    detector: tulip_ood.Tulip
    path: Path
    written: Any


@pytest.fixture(scope="module", params=[("cnn", "all"), ("vit", "last-block")], ids="-".join)
def onnx_gate(
    request: pytest.FixtureRequest,
    images: Any,
    vit: nn.Module,
    thousand: Tensor,
    tmp_path_factory: pytest.TempPathFactory,
) -> Gate:
    """TULiP on either network, compared on a thousand inputs when it was written."""
    network, scope = request.param
    detector = tulip_ood.Tulip(vit if network == "vit" else images.model, scope=scope, n_samples=4)
    detector.fit(images.loader(), recipe="balanced")
    path = tmp_path_factory.mktemp("onnx") / "gate.onnx"
    return Gate(detector, path, tulip_ood.export(detector, path, check=[thousand]))


@pytest.fixture(scope="module")
def pt2_gate(images: Any, vit: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The other format; only the transformer's head is perturbed."""
    detector = tulip_ood.Tulip(vit, scope="head", n_samples=2, score="msp")
    detector.fit(images.loader(), recipe="balanced")
    path = tmp_path_factory.mktemp("pt2") / "gate.pt2"
    return Gate(detector, path, tulip_ood.export(detector, path))


def test_a_thousand_inputs_in_plain_onnxruntime(onnx_gate: Gate, thousand: Tensor) -> None:
    written, whole = onnx_gate.written, onnx_gate.detector.scope == "all"
    assert len(thousand) == 1000
    assert written.parity.n_inputs == 1049
    assert written.parity.score <= 1e-4
    assert written.plan.megabytes < written.megabytes < written.plan.megabytes + 0.2
    assert written.plan.passes == 6
    assert (written.plan.trunk_share > 0) == (not whole)
    convolutions = [n for n in onnx.load(onnx_gate.path).graph.node if n.op_type == "Conv"]
    assert len(convolutions) == (12 if whole else 1)  # the trunk is there once
    found = run_plainly(onnx_gate.path, thousand, onnx_gate.detector)
    close(found, onnx_gate.detector, thousand)


@pytest.mark.parametrize(
    "method", ["mls", "ebo", "gen", "tempscale", "ash-s", "knn", "tulip+scale"]
)
def test_other_methods(method: str, images: Any, tmp_path: Path) -> None:
    settings = {"n_samples": 2} if "tulip" in method else {}
    detector = tulip_ood.detectors.make(method, images.model, **settings)
    detector.fit(images.loader(), **({"recipe": "balanced"} if settings else {}))
    tulip_ood.export(detector, tmp_path / "gate.onnx")
    close(tulip_ood.export.load(tmp_path / "gate.onnx")(images.ood), detector, images.ood)


def test_no_inputs_get_no_answers(onnx_gate: Gate, pt2_gate: Gate, images: Any) -> None:
    """As from the detector; onnxruntime itself fails on an empty batch."""
    for gate in (onnx_gate, pt2_gate):
        artefact = tulip_ood.export.load(gate.path, trust=True)
        one, none = artefact(images.ood[:1]), artefact(images.ood[:0])
        assert one.keys() == none.keys()
        for name, whole in one.items():
            assert none[name].shape == (0, *whole.shape[1:])
            assert none[name].dtype == whole.dtype
        with pytest.raises(InputError, match="must be float32"):
            artefact(torch.zeros(0, 7))


def test_without_a_drift_pass(images: Any, tmp_path: Path) -> None:
    detector = tulip_ood.Tulip(images.model, n_samples=2, drift="norm")
    detector.fit(images.loader(), recipe="balanced")
    tulip_ood.export(detector, tmp_path / "gate.onnx")
    close(tulip_ood.export.load(tmp_path / "gate.onnx")(images.ood), detector, images.ood)


def test_pt2_is_opened_when_it_is_trusted(pt2_gate: Gate, images: Any) -> None:
    with pytest.raises(InputError, match="can run code when it is loaded"):
        tulip_ood.export.load(pt2_gate.path)
    artefact = tulip_ood.export.load(pt2_gate.path, trust=True)
    close(artefact(images.ood), pt2_gate.detector, images.ood)
    assert artefact.golden_gap() <= 1e-4


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks(task: str, vectors: Any, tmp_path: Path) -> None:
    x = vectors.val[0][:200]
    y = torch.cat([x.sum(dim=1, keepdim=True), x], dim=1)
    detector = tulip_ood.Tulip(vectors.model, task=task, n_samples=2)
    detector.fit([(x, y if task == "regression" else (y > 0).long())], recipe="balanced")
    tulip_ood.export(detector, tmp_path / "gate.pt2", check=[x])
    answer = tulip_ood.export.load(tmp_path / "gate.pt2", trust=True)(vectors.ood)
    expected = detector.predict(vectors.ood)
    np.testing.assert_allclose(answer["probs"], expected.probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(answer["accepted"], expected.accepted)


def test_an_artefact_says_what_it_is(images: Any, tmp_path: Path) -> None:
    detector = tulip_ood.detectors.MSP(images.model).fit(images.loader())
    detector.provenance["classes"] = ["a", "b", "c", "d"]
    detector.set_threshold(false_alarm=0.1)
    tulip_ood.export(detector, tmp_path / "gate.onnx")
    artefact = tulip_ood.export.load(tmp_path / "gate.onnx")
    header = artefact.header
    assert header["weights_sha256"] == detector.network.fingerprint()["weights_sha256"]
    assert header["threshold"]["target"] == 0.1
    assert header["classes"] == ["a", "b", "c", "d"]
    assert header["inputs"] == [{"name": "input", "dtype": "float32", "shape": [1, 8, 8]}]
    assert header["versions"]["tulip_ood"] == tulip_ood.__version__
    assert len(header["golden"]["scores"]) == 16
    assert artefact.golden_gap() <= 1e-4
    json.dumps(header, allow_nan=False)
    bad = images.test[0][:3].clone()
    bad[1, 0, 0, 0] = math.nan
    answer = artefact(bad)
    assert np.isinf(answer["score"]).tolist() == [False, True, False]
    assert answer["p_value"][1] == 0
    assert not answer["accepted"][1]
    with pytest.raises(InputError, match=r"input must be float32 \['N', 1, 8, 8\]"):
        artefact(bad[0])
    onnx.checker.check_model(str(tmp_path / "gate.onnx"), full_check=True)


def test_pixels_are_normalised_inside(images: Any, tmp_path: Path) -> None:
    preprocess = Preprocess(None, None, (0.5,), (0.15,))
    pixels = torch.randint(0, 256, (300, 8, 8, 1), dtype=torch.uint8)
    x = preprocess.normalise(pixels.numpy())
    detector = tulip_ood.detectors.Entropy(images.model)
    detector.fit([(x, images.val[1][:300])])
    with pytest.raises(InputError, match="does not know how images are prepared"):
        tulip_ood.export(detector, tmp_path / "gate.onnx", preprocess=True)
    tulip_ood.export(detector, tmp_path / "gate.onnx", preprocess=preprocess, check=[x])
    artefact = tulip_ood.export.load(tmp_path / "gate.onnx")
    assert artefact.header["inputs"][0] == {"name": "input", "dtype": "uint8", "shape": [8, 8, 1]}
    assert artefact.header["preprocess"]["std"] == [0.15]
    assert artefact.golden_gap() <= 1e-4
    close(artefact(pixels), detector, x)


class Biased(nn.Module):
    """The tail picks from a perturbed table by a buffer that is worked on first, as Swin does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(2, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("index", torch.tensor([[3], [1]]))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.index.view(-1)].mean(dim=0)
        return self.head(torch.relu(self.stem(x)) + bias)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_buffer_of_the_tail(vectors: Any, tmp_path: Path) -> None:
    detector = tulip_ood.Tulip(Biased(), scope=["table", "head.*"], n_samples=2, j=1.0)
    detector.fit(vectors.loader(), recipe="balanced")
    written = tulip_ood.export(detector, tmp_path / "gate.onnx")
    assert written.plan.trunk_share > 0


class Words(nn.Module):
    """Two named inputs, one of them whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        seen = self.table(ids) * mask.unsqueeze(-1)
        return self.head(seen.sum(dim=1) / mask.sum(dim=1, keepdim=True))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_named_inputs_and_a_yes_or_no(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = {"ids": torch.randint(50, (200, 6)), "mask": torch.ones(200, 6)}
    detector = tulip_ood.Tulip(Words(), task="binary", n_samples=2)
    detector.fit([{**x, "labels": torch.randint(2, (200,))}], recipe="balanced")
    tulip_ood.export(detector, tmp_path / "gate.onnx", check=[x])
    artefact = tulip_ood.export.load(tmp_path / "gate.onnx")
    assert artefact.names == ("ids", "mask")
    assert artefact.header["precision"].startswith("float64")  # float32 is not near enough here
    assert artefact(x)["probs"].shape == (200, 1)
    with pytest.raises(InputError, match="expected ids, mask; got 1 input$"):
        artefact(x["ids"])


def test_a_file_that_is_no_artefact(tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(b"\x08\x0a\x12")
    with pytest.raises(FileFormatError):
        tulip_ood.export.load(tmp_path / "cut.onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["N"]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 20)]
    other = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(other, tmp_path / "r.onnx")
    whole = {"inputs": [], "golden": {"inputs": {}, "scores": []}, "calibration": {"spread": 1}}
    whole |= {"preprocess": None, "prepares_pixels": False}
    whole["format"] = "tulip-artefact-1"
    for header, why in (
        (None, "holds no detector"),
        ("[" * 100_000, "holds no detector"),  # more than Python follows
        (json.dumps({"format": "tulip-artefact-1"}), "damaged header"),
        (json.dumps(whole | {"calibration": {"spread": 10**400}}), "damaged header"),
        (json.dumps(whole), "other inputs or outputs"),
    ):
        if header is not None:
            onnx.helper.set_model_props(other, {"tulip": header})
            onnx.save(other, tmp_path / "r.onnx")
        with pytest.raises(FileFormatError, match=why):
            tulip_ood.export.load(tmp_path / "r.onnx")


def test_of_many_inputs_only_as_many_are_read_as_are_compared(tmp_path: Path) -> None:
    """Also where they may be needed twice: a small network's passes are in float64."""
    torch.manual_seed(0)
    x, y = torch.randn(200, 4), torch.randint(3, (200,))
    detector = tulip_ood.detectors.MSP(nn.Linear(4, 3)).fit([(x, y)])
    assert detector.network.dtype == torch.float64
    read = 0

    def lake() -> Iterator[Tensor]:
        nonlocal read
        for _ in range(50):
            read += 1
            yield torch.randn(300, 4)

    assert tulip_ood.export(detector, tmp_path / "a.onnx", check=lake()).parity.n_inputs == 1049
    assert read == 4
    pair = tulip_ood.export(detector, tmp_path / "a.onnx", check=(x, y))  # one batch, not two
    assert pair.parity.n_inputs == 249
