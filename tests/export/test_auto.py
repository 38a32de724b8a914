"""`Auto` in a file: every opinion that it hears, and the parts of its graph one by one."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.knn import KNN, Bank
from tulip_ood.errors import ModelError
from tulip_ood.export.judging import OUTPUTS, Judge
from tulip_ood.export.onnx_functions import onnx_function
from tulip_ood.export.passing import Passing, WholeDetector
from tulip_ood.export.portable import Portable
from tulip_ood.export.scoring import graph_score
from tulip_ood.network.inner import InnerStatistics, Stage
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.numerics.tasks import make_task

from .plain import close, run_plainly

ALL = ("tulip", "react", "knn", "nci", "fdbd", "ratio", "depth")


@pytest.fixture(scope="module")
def fitted(images: Any) -> Auto:
    """One that hears all seven, whatever their worth, and looks at mirror images."""
    given = {"tulip": {"j": 1.5}}
    detector = Auto(images.model, n_samples=2, settings=given).fit(images.loader())
    assert detector._part_names == ALL
    assert detector._mirrors
    return loud(detector, *ALL[1:])


def loud(detector: Auto, *parts: str, mirrors: bool = True) -> Auto:
    """One that hears some parts, whatever they are worth, and from low bars on."""
    made = copy.copy(detector)
    made._weights = {name: 0.7 if name in parts else 0.0 for name in detector._weights}
    made._bars = dict.fromkeys(detector._bars, 0.1)
    made._mirrors = mirrors
    assert made._heard == ("tulip", *parts)
    return made


# ---------------------------------------------------------------------------- whole artefacts


def test_a_thousand_inputs_in_plain_onnxruntime(fitted: Auto, images: Any, tmp_path: Path) -> None:
    thousand = torch.cat([images.test[0], images.ood, -images.ood[:200]])
    path = tmp_path / "gate.onnx"
    written = tulip_ood.export(fitted, path, check=[thousand])
    assert written.parity.n_inputs == 1049
    assert written.plan.passes == 5  # base, two noisy ones, drift, mirror image
    assert written.plan.megabytes < written.megabytes < written.plan.megabytes + 1.0
    close(run_plainly(path, thousand, fitted), fitted, thousand)
    nodes = onnx.load(path).graph.node
    assert sum(node.op_type == "Conv" for node in nodes) == 2 * 5
    onnx.checker.check_model(str(path), full_check=True)
    # Any number at once, with inputs among them that cannot be scored.
    artefact, x = tulip_ood.export.load(path), thousand[495:512].clone()
    x[3, 0, 0, 0], x[5] = math.nan, math.inf
    for n in (1, 2, 17):
        parts = [artefact(x[i : i + n])["score"] for i in range(0, len(x), n)]
        score, expected = np.concatenate(parts), fitted.score(x).numpy()
        assert (np.isinf(score) == np.isinf(expected)).all()
        good = np.isfinite(expected)
        assert good.sum() == len(x) - 2
        apart = np.abs(score[good] - expected[good]).max()
        assert apart <= 1e-4 * fitted.calibration.spread
    assert artefact.header["method"] == "auto"
    said = artefact.header["settings"]
    assert said["weights"] == fitted._weights
    assert said["mirrored"]
    assert said["parts"]["depth"]["stages"] == ["2"]


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_transformer_that_takes_pixels(vit: nn.Module, images: Any, tmp_path: Path) -> None:
    """Features may be negative; the trunk runs for both images."""
    preprocess = Preprocess(None, None, (0.5,), (0.15,))
    pixels = ((images.val[0] * 0.15 + 0.5) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = pixels.permute(0, 2, 3, 1).contiguous()
    x = preprocess.normalise(pixels.numpy())
    detector = Auto(vit, n_samples=2, scope="last-block")
    detector = detector.fit([(x, images.val[1])])
    assert detector._part_names == ALL
    detector = loud(detector, *ALL[1:])
    tulip_ood.export(detector, tmp_path / "gate.onnx", preprocess=preprocess, check=[x])
    artefact = tulip_ood.export.load(tmp_path / "gate.onnx")
    close(artefact(pixels), detector, x)
    convolutions = [n for n in onnx.load(tmp_path / "gate.onnx").graph.node if n.op_type == "Conv"]
    assert len(convolutions) == 2  # the patches of an image, and of its mirror image


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_vectors_of_two_classes(vectors: Any, tmp_path: Path) -> None:
    """No mirror images, no inner stages; few classes, and bars that nothing exceeds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    x = vectors.val[0]
    y = (model(3 * x) + torch.randn(len(x), 2) / 2).argmax(1)
    detector = Auto(model, n_samples=2).fit([(x, y)])
    assert detector._part_names == ALL[:-1]
    detector = loud(detector, "react", "knn", "nci", "fdbd", "ratio", mirrors=False)
    detector._bars["ratio"] = math.inf
    tulip_ood.export(detector, tmp_path / "gate.onnx", check=[x])
    artefact = tulip_ood.export.load(tmp_path / "gate.onnx")
    close(artefact(vectors.ood), detector, vectors.ood)
    json.dumps(artefact.header, allow_nan=False)
    assert artefact.header["settings"]["bars"]["ratio"] is None


def test_without_noise_a_file_runs_the_network_twice(images: Any, tmp_path: Path) -> None:
    detector = Auto(images.model, n_samples=0).fit(images.loader())
    assert detector._mirrors
    written = tulip_ood.export(detector, tmp_path / "gate.onnx")
    assert written.plan.passes == detector._needs_to_score().passes == 2
    close(tulip_ood.export.load(tmp_path / "gate.onnx")(images.ood), detector, images.ood)
    nodes = onnx.load(tmp_path / "gate.onnx").graph.node
    assert sum(node.op_type == "Conv" for node in nodes) == 2 * 2


def test_pt2_looks_at_inner_stages_once(fitted: Auto, images: Any, tmp_path: Path) -> None:
    tulip_ood.export(fitted, tmp_path / "gate.pt2")
    artefact = tulip_ood.export.load(tmp_path / "gate.pt2", trust=True)
    close(artefact(images.ood), fitted, images.ood)
    program = torch.export.load(tmp_path / "gate.pt2")
    roots = [n for n in program.graph.nodes if n.target is torch.ops.aten.sqrt.default]
    # Scores are float64: a root in float32 is the deviation of a stage's channels.
    assert [n.meta["val"].dtype for n in roots].count(torch.float32) == 1


def test_a_saved_one_and_a_sum(fitted: Auto, images: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "auto.safetensors")
    again = tulip_ood.load(tmp_path / "auto.safetensors", images.model)
    alike(again, images.ood)
    both = tulip_ood.detectors.make(
        "tulip&knn", images.model, settings={"tulip": {"n_samples": 2}, "knn": {"k": 900}}
    ).fit(images.loader())
    assert both._state.parts[1].neighbour(900) > 1
    tulip_ood.export(both, tmp_path / "gate.onnx")
    close(tulip_ood.export.load(tmp_path / "gate.onnx")(images.ood), both, images.ood)


# ----------------------------------------------------------------- every opinion, as a module


def alike(detector: Detector, x: Tensor) -> None:
    """What an artefact holds, run by PyTorch: the detector to the last few bits."""
    portable = Portable.of(detector, detector.network.dtype)
    judge = Judge(detector, drifts=portable.drifts)
    with torch.no_grad():
        values = WholeDetector(Passing(portable), portable, judge)((x,))
    found, expected = dict(zip(OUTPUTS, values, strict=True)), detector.predict(x)
    torch.testing.assert_close(found["score"], expected.score, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["p_value"], expected.p_value)
    torch.testing.assert_close(found["probs"], expected.probs.float())
    assert torch.equal(found["label"], expected.label)
    assert torch.equal(found["accepted"], expected.accepted)


@pytest.mark.parametrize("mirrors", [True, False])
@pytest.mark.parametrize("parts", [(), *((part,) for part in ALL[1:]), ALL[1:]])
def test_every_opinion(parts: tuple[str, ...], mirrors: bool, fitted: Auto, images: Any) -> None:
    detector = loud(fitted, *parts, mirrors=mirrors)
    needs = detector._needs_to_score()
    assert any(isinstance(measure, Mirrored) for measure in needs.measures) == mirrors
    alike(detector, torch.cat([images.test[0][:100], images.ood[:100]]))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_strength_0_and_an_envelope_without_width(images: Any) -> None:
    """One pass is enough, and there is one in the file."""
    settings = {"tulip": {"j": 0.0}}
    detector = Auto(images.model, n_samples=2, strength=0, parts=["tulip"], settings=settings)
    detector.fit(images.loader())
    narrow = replace(detector._order._state, j_probs=0.0)  # as where J* does not help
    detector._order._state, detector._state = narrow, replace(detector._state, parts=(narrow,))
    assert len(Portable.of(detector).weights) == 1
    alike(detector, images.ood)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_another_task(vectors: Any) -> None:
    x = vectors.val[0][:200]
    detector = Auto(vectors.model, task="multilabel", n_samples=2)
    detector.fit([(x, (torch.cat([x.sum(dim=1, keepdim=True), x], dim=1) > 0).long())])
    alike(detector, vectors.ood)


class Tokens(nn.Module):
    """Every token is classified; the last one that is not 0 answers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.score = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        last = (ids != 0).sum(dim=1) - 1
        every: Tensor = self.score(torch.relu(self.table(ids).cumsum(dim=1)))
        return every[torch.arange(ids.shape[0]), last]


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("method", ["knn", "react", "tulip+react"])
def test_features_of_the_position_that_answers(method: str) -> None:
    """As in decoders, wherever that is: inputs are padded with zeros."""
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (120, 5))
    ids[::3, 3:] = 0
    ids[1::3, 1:] = 0
    detector = tulip_ood.detectors.make(method, Tokens()).fit([(ids, torch.randint(3, (120,)))])
    alike(detector, ids)


class Mean(Tokens):
    """All tokens answer together."""

    def forward(self, ids: Tensor) -> Tensor:
        every: Tensor = self.score(torch.relu(self.table(ids)))
        return every.mean(dim=1)


def test_features_of_all_positions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (120, 5))
    detector = tulip_ood.detectors.make("knn", Mean()).fit([(ids, torch.randint(3, (120,)))])
    words = r"\('score'\) is fed.* no vector an input but \['N', 5, 8\].* Pool features"
    with pytest.raises(ModelError, match=words):
        tulip_ood.export(detector, tmp_path / "x.pt2")
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------- new pieces of the graph


def in_onnxruntime(module: nn.Module, x: Tensor, *more: Tensor) -> list[np.ndarray[Any, Any]]:
    """A module as ONNX, made with some inputs and run on others."""
    function = onnx_function("f", module, (x,), dynamic=({0: torch.export.Dim("rows", min=1)},))
    kinds = {torch.float32: 1, torch.uint8: 2, torch.float64: 11}
    with torch.no_grad():
        out = module(x)
    ends = [
        helper.make_tensor_value_info(name, kinds[t.dtype], ["N", *t.shape[1:]])
        for name, t in ((function.inputs[0], x), (function.outputs[0], out))
    ]
    graph = helper.make_graph(function.nodes, "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", function.opset)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    return [session.run(None, {function.inputs[0]: one.numpy()})[0] for one in more]


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("k", [1, 7, 40])
def test_neighbours_with_ties_duplicates_and_silence(k: int) -> None:
    torch.manual_seed(0)
    rows = nn.functional.normalize(torch.rand(37, 6), dim=1)
    bank = Bank(torch.cat([rows, rows[:3]]))  # three of them twice
    detector = KNN(nn.Linear(6, 3), k=k)

    def passes(features: Tensor) -> Passes:
        base = features[:, :3]
        return Passes(base, base[None][:0], None, features, None, PassSettings(1.0, n_samples=0))

    queries = torch.cat([5 * rows[:4], torch.rand(9, 6), torch.zeros(1, 6)])
    queries[6, 2], queries[8] = math.nan, math.inf
    expected = detector._score(bank, passes(queries))
    assert torch.isinf(expected).sum() == 2
    module = Of(lambda features: graph_score(detector, bank, passes(features)))
    torch.testing.assert_close(module(queries), expected, rtol=0, atol=1e-14)
    found = in_onnxruntime(module, torch.rand(5, 6), queries, queries[:1])
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found[1], expected[:1], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "images",
    [
        torch.rand(5, 3, 6, 7),
        torch.randint(0, 256, (5, 3, 6, 7), dtype=torch.uint8),
        torch.randint(0, 256, (5, 6, 7, 3), dtype=torch.uint8),  # colours last
    ],
)
def test_mirror_images(images: Tensor) -> None:
    (found,) = in_onnxruntime(Of(Mirrored().change), images[:3], images)
    expected = images.flip(-2 if images.shape[-1] == 3 else -1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stage", [Stage("", 1, 4), Stage("", -1, 4)])
def test_statistics_of_silent_and_of_loud_channels(stage: Stage) -> None:
    torch.manual_seed(0)
    maps = torch.randn(6, 4, 5, 5)
    maps[0], maps[1], maps[2, 1] = 0.0, 3.3, 1e4 + maps[2, 1]
    if stage.channels == -1:
        maps = maps.flatten(2).transpose(1, 2).contiguous()
    wide = maps.double().flatten(2) if stage.channels == 1 else maps.double().transpose(1, 2)
    expected = torch.cat([wide.mean(dim=2), wide.std(dim=2, correction=0)], dim=1)
    (found,) = in_onnxruntime(Of(stage.statistics), maps[2:5], maps)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_inner_stages_before_what_follows_writes_to_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 3)
    )
    network, x = Network(model, make_task("classification")), torch.randn(6, 1, 5, 5)
    inner = InnerStatistics((Stage("0", 1, 4), Stage("2", 1, 8)))
    for names in ((), ("4.bias",), tuple(network.parameters)):
        partition = Partition.of(network, names, x, looks=(inner,))
        values = partition.all_values(partition.handed(x), [partition.weights()])[0]
        torch.testing.assert_close(values[-1], inner(network, x))
        torch.testing.assert_close(partition.output(values, 6).logits, network.run(x).logits)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_inner_stages_alone(images: Any) -> None:
    alike(Depth(images.model).fit(images.loader()), images.ood)
