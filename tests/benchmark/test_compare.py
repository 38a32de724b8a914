"""Every number of a comparison against a direct call of the metric it is named after."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.benchmark.evaluate import evaluate
from tulip_ood.benchmark.results import Comparison
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics

NAMES = ("msp", "ent", "ebo", "tulip")


@pytest.fixture(scope="module")
def detectors(vectors: Any) -> dict[str, Detector]:
    made: dict[str, Detector] = {}
    for name in NAMES:
        detector = tulip_ood.detectors.make(name, vectors.model)
        more = {"recipe": "balanced"} if name == "tulip" else {}
        made[name] = detector.fit(vectors.loader(), **more)
    return made


@pytest.fixture(scope="module")
def ood(vectors: Any) -> dict[str, Tensor]:
    return {"far": vectors.ood, "shifted": vectors.test[0][:100] + 1.5, "one": vectors.ood[:1]}


@pytest.fixture(scope="module")
def comparison(detectors: dict[str, Detector], ood: dict[str, Tensor], vectors: Any) -> Comparison:
    return evaluate(detectors, vectors.test, ood, {"far": "far", "shifted": "near"})


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_the_metrics(
    comparison: Comparison,
    detectors: dict[str, Detector],
    ood: dict[str, Tensor],
    vectors: Any,
    name: str,
) -> None:
    x, y = vectors.test
    detector, result = detectors[name], comparison.methods[name]
    scores, found = detector.score(x), detector.predict(x)
    with torch.no_grad():
        wrong = (vectors.model(x).argmax(1) != y).to(torch.float64)
    assert torch.equal(result.id_scores, scores)
    assert torch.equal(result.wrong, wrong)
    assert result.accuracy == pytest.approx(1 - float(wrong.mean()))
    assert result.aurc == metrics.aurc(scores, wrong)
    assert result.augrc == metrics.augrc(scores, wrong)
    said = found.probs[torch.arange(len(y)), found.label]
    assert result.ece == metrics.ece(said, 1 - wrong)
    assert result.nll == metrics.nll(found.probs, y)
    assert result.coverage == float(found.accepted.to(torch.float64).mean())
    assert result.false_alarms == 1 - result.coverage
    assert result.accepted_error == pytest.approx(float(wrong[found.accepted].mean()))
    for each, inputs in ood.items():
        outside, of_set = detector.score(inputs), result.sets[each]
        assert torch.equal(of_set.scores, outside)
        assert of_set.auroc == metrics.auroc(scores, outside)
        assert of_set.id_flagged_at_95_ood == metrics.id_flagged_at_95_ood(scores, outside)
        assert of_set.ood_missed_at_95_id == metrics.ood_missed_at_95_id(scores, outside)
        refused = ~detector.predict(inputs).accepted
        assert of_set.refused == pytest.approx(float(refused.to(torch.float64).mean()))


def test_group_means(comparison: Comparison) -> None:
    result = comparison.methods["ent"]
    assert comparison.in_group("near") == ["shifted"]
    assert comparison.mean("ent", "auroc", group="near") == result.sets["shifted"].auroc
    each = [result.sets[name].auroc for name in comparison.sets]
    assert comparison.mean("ent", "auroc") == pytest.approx(sum(each) / 3)


def test_json_is_strict_and_complete(comparison: Comparison) -> None:
    text = json.dumps(comparison.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["n_ood"] == {"far": 300, "shifted": 100, "one": 1}
    for name, method in back["methods"].items():
        assert method["aurc"] == comparison.methods[name].aurc
        assert method["sets"]["far"]["auroc"] == comparison.methods[name].sets["far"].auroc
        assert method["near"]["auroc"] == comparison.mean(name, "auroc", group="near")
        assert method["accepted_error"] == comparison.methods[name].accepted_error


def test_inputs_without_a_score_count_as_unsure(
    detectors: dict[str, Detector], vectors: Any
) -> None:
    spoiled = torch.full((3, 2), torch.nan)
    x = torch.cat([vectors.test[0][:50], spoiled])
    y = torch.cat([vectors.test[1][:50], torch.zeros(3, dtype=torch.int64)])
    found = evaluate(detectors, (x, y), {"spoiled": spoiled})
    for result in found.methods.values():
        assert bool((result.id_scores[-3:] == math.inf).all())
        assert result.sets["spoiled"].refused == 1.0
        assert result.coverage <= 50 / 53
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_regression_has_no_errors_to_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 2, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(500, 1, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    detector = tulip_ood.Tulip(model, task="regression", j=1.0).fit([(x, y)], recipe="balanced")
    found = evaluate({"tulip": detector}, (x, y), {"far": 5 * x})
    result = found.to_dict()["methods"]["tulip"]
    assert result["aurc"] is None
    assert result["accuracy"] is None
    assert result["ece"] is None
    assert 0 <= result["sets"]["far"]["auroc"] <= 1


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_dense_outputs_are_judged_by_position() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 1, 6, 6, generator=generator)
    y = (x[:, 0] > 0.5).to(torch.int64)
    y[:, 0, 0] = -100
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Conv2d(1, 2, 3, padding=1)
    detector = tulip_ood.detectors.Entropy(model, task="dense").fit([(x, y)])
    result = evaluate({"ent": detector}, (x, y), {"bright": x + 2}).methods["ent"]
    assert result.id_scores.shape == (60 * 36,)
    assert int(result.wrong.isnan().sum()) == 60
    assert 0 < result.accuracy < 1
    assert math.isfinite(result.nll)


def test_multilabel_needs_every_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator)
    y = (x > 0).to(torch.int64)
    y[:30, 0] = 1 - y[:30, 0]
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)
    nn.init.zeros_(model.bias)
    detector = tulip_ood.detectors.Entropy(model, task="multilabel").fit([(x, y)])
    result = evaluate({"ent": detector}, (x, y), {}).methods["ent"]
    assert result.accuracy == pytest.approx(0.9)
    assert math.isnan(result.ece)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"detectors": {}}, "no detectors"),
        ({"ood": {"far": torch.zeros(0, 2)}}, "no inputs in far"),
        ({"groups": {"far": "middle"}}, "'near' or 'far'"),
        ({"groups": {"elsewhere": "near"}}, "elsewhere"),
        ({"id_test": (torch.zeros(3, 2), torch.zeros(2))}, "got 3 ID test inputs but 2 labels"),
    ],
)
def test_wrong_arguments(
    detectors: dict[str, Detector], vectors: Any, change: dict[str, Any], message: str
) -> None:
    given = {
        "detectors": detectors,
        "id_test": vectors.test,
        "ood": {"far": vectors.ood},
        "groups": None,
    }
    with pytest.raises(InputError, match=message):
        evaluate(**(given | change))
